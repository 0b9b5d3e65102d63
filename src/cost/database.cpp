#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "cost/sqlite.h"
#include "plimsoll/cost.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kApplicationId = 0x504c4d53;  // "PLMS" in the file's header
constexpr int64_t kSchemaVersion = 5;           // 2: tiers; 3: workspaces; 4: interference; 5: busy

constexpr const char* kSchema = R"(
CREATE TABLE IF NOT EXISTS costs (
  device TEXT NOT NULL, signature TEXT NOT NULL, kernel TEXT NOT NULL, threads INTEGER NOT NULL,
  source INTEGER NOT NULL, time_ms REAL NOT NULL, spread_ms REAL NOT NULL, runs INTEGER NOT NULL,
  saved_at INTEGER NOT NULL, workspace INTEGER NOT NULL DEFAULT -1, busy INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (device, signature, kernel, threads, source)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rates (
  device TEXT PRIMARY KEY, gflops REAL NOT NULL, memory_gb_per_s REAL NOT NULL, launch_us REAL NOT NULL,
  saved_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tiers (
  device TEXT NOT NULL, tier TEXT NOT NULL, out_gb_per_s REAL NOT NULL, in_gb_per_s REAL NOT NULL,
  latency_us REAL NOT NULL, compute_share REAL NOT NULL, saved_at INTEGER NOT NULL,
  PRIMARY KEY (device, tier)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS interference (
  device TEXT NOT NULL, first TEXT NOT NULL, second TEXT NOT NULL, saved_at INTEGER NOT NULL,
  PRIMARY KEY (device, first, second)) WITHOUT ROWID;
)";

// Another process may have measured on a quiet machine meanwhile.
constexpr const char* kPutCost =
    "INSERT INTO costs (device,signature,kernel,threads,source,time_ms,spread_ms,runs,saved_at,workspace,busy) "
    "VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT (device,signature,kernel,threads,source) DO UPDATE SET "
    "time_ms=excluded.time_ms,spread_ms=excluded.spread_ms,runs=excluded.runs,saved_at=excluded.saved_at,"
    "workspace=excluded.workspace,busy=excluded.busy WHERE excluded.busy<=costs.busy";

constexpr const char* kPutPair = "INSERT OR REPLACE INTO interference (device,first,second,saved_at) VALUES (?,?,?,?)";

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Held while a database is opened and, where it is broken, replaced, so that of several processes one replaces it and
// the others find the new one. Without a lock file (a read-only folder), or where another process keeps it for long (stopped,
// perhaps), nobody replaces anything.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& path) {
    handle_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    const auto begin = std::chrono::steady_clock::now();
    while (handle_ >= 0 && flock(handle_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() - begin > kPatience) {
        close(handle_);
        handle_ = -1;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
  }
  ~FolderLock() {
    if (handle_ >= 0) close(handle_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  bool held() const { return handle_ >= 0; }

 private:
  static constexpr std::chrono::seconds kPatience{10};
  int handle_ = -1;
};

class NewerSchema : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

bool is_sane(const Cost& cost) {
  return cost.source >= Cost::Source::measured && cost.source <= Cost::Source::in_step && std::isfinite(cost.time_ms) &&
         cost.time_ms > 0 && std::isfinite(cost.spread_ms) && cost.spread_ms >= 0 && cost.runs >= 0;
}
bool is_sane(const MachineRates& rates) {
  auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  return positive(rates.gflops) && positive(rates.memory_gb_per_s) && std::isfinite(rates.launch_us) &&
         rates.launch_us >= 0;
}

bool is_sane(const TierInfo& tier) {
  auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  return positive(tier.out_gb_per_s) && positive(tier.in_gb_per_s) && std::isfinite(tier.latency_us) &&
         tier.latency_us >= 0 && tier.compute_share >= 0 && tier.compute_share <= 1;
}

// Opens and checks; throws SqliteError, which is corrupt where the file is no cost database.
std::unique_ptr<SqliteConnection> open_checked(const fs::path& path) {
  auto connection = std::make_unique<SqliteConnection>(path, SqliteConnection::Mode::read_write_create);
  if (const std::string found = connection->text("PRAGMA quick_check(1)"); found != "ok") {
    throw SqliteError::corrupt(found);
  }
  const int64_t version = connection->integer("PRAGMA user_version");
  const int64_t tables = connection->integer("SELECT count(*) FROM sqlite_master");
  if (tables > 0 && connection->integer("PRAGMA application_id") != kApplicationId) {
    throw SqliteError::corrupt("it is a database of another program");
  }
  if (version > kSchemaVersion) {
    throw NewerSchema(
        fmt::format("it was written by a newer version (schema {}, this one knows {})", version, kSchemaVersion));
  }
  if (!connection->is_read_only() && version < kSchemaVersion) {
    SqliteTransaction transaction(*connection);
    if (version == 1 || version == 2)
      connection->run("ALTER TABLE costs ADD COLUMN workspace INTEGER NOT NULL DEFAULT -1");
    if (version >= 1) connection->run("ALTER TABLE costs ADD COLUMN busy INTEGER NOT NULL DEFAULT 0");
    connection->run(kSchema);
    connection->run(fmt::format("PRAGMA application_id = {}", kApplicationId));
    connection->run(fmt::format("PRAGMA user_version = {}", kSchemaVersion));
    transaction.commit();
  }
  // A query that names every column fails on tables of another form.
  const bool has_workspaces = version >= 3 || !connection->is_read_only();
  const bool has_busy = version >= 5 || !connection->is_read_only();
  connection->run(fmt::format(
      "SELECT device,signature,kernel,threads,source,time_ms,spread_ms,runs,saved_at{}{} FROM costs LIMIT 1",
      has_workspaces ? ",workspace" : "", has_busy ? ",busy" : ""));
  connection->run("SELECT device,gflops,memory_gb_per_s,launch_us,saved_at FROM rates LIMIT 1");
  if (version >= 2 || !connection->is_read_only()) {
    connection->run("SELECT device,tier,out_gb_per_s,in_gb_per_s,latency_us,compute_share,saved_at FROM tiers LIMIT 1");
  }
  if (version >= 4 || !connection->is_read_only())
    connection->run("SELECT device,first,second,saved_at FROM interference LIMIT 1");
  return connection;
}

}  // namespace

struct CostDatabase::Impl {
  fs::path path;
  std::string device_key;
  std::string notice;
  bool kept = true;
  std::unique_ptr<SqliteConnection> connection;

  void say(const std::string& what) {
    if (!notice.empty()) notice += "; ";
    notice += what;
  }

  void use_memory(const std::string& why) {
    say(fmt::format("the cost database '{}' cannot be used: {}; costs are kept for this run only", path.string(), why));
    kept = false;
    connection = std::make_unique<SqliteConnection>("", SqliteConnection::Mode::in_memory);
    connection->run(kSchema);
  }

  // What can be read of a database that cannot be written is read.
  void copy_from_read_only() {
    try {
      SqliteConnection source(path, SqliteConnection::Mode::read_only);
      const int64_t version = source.integer("PRAGMA user_version");
      if (version < 1 || version > kSchemaVersion) return;
      SqliteStatement rows(
          source,
          fmt::format("SELECT device,signature,kernel,threads,source,time_ms,spread_ms,runs,saved_at,{},{} FROM costs",
                      version < 3 ? "-1" : "workspace", version < 5 ? "0" : "busy"));
      SqliteStatement put(*connection, kPutCost);
      while (rows.step()) {
        put.bind(rows.text(0)).bind(rows.text(1)).bind(rows.text(2)).bind(rows.integer(3)).bind(rows.integer(4));
        put.bind(rows.real(5))
            .bind(rows.real(6))
            .bind(rows.integer(7))
            .bind(rows.integer(8))
            .bind(rows.integer(9))
            .bind(rows.integer(10))
            .step();
        put.reset();
      }
      SqliteStatement rates(source, "SELECT device,gflops,memory_gb_per_s,launch_us,saved_at FROM rates");
      SqliteStatement put_rates(*connection, "INSERT OR REPLACE INTO rates VALUES (?,?,?,?,?)");
      while (rates.step()) {
        put_rates.bind(rates.text(0))
            .bind(rates.real(1))
            .bind(rates.real(2))
            .bind(rates.real(3))
            .bind(rates.integer(4))
            .step();
        put_rates.reset();
      }
      if (version < 2) return;
      SqliteStatement tiers(source,
                            "SELECT device,tier,out_gb_per_s,in_gb_per_s,latency_us,compute_share,saved_at FROM tiers");
      SqliteStatement put_tiers(*connection, "INSERT OR REPLACE INTO tiers VALUES (?,?,?,?,?,?,?)");
      while (tiers.step()) {
        put_tiers.bind(tiers.text(0)).bind(tiers.text(1)).bind(tiers.real(2)).bind(tiers.real(3)).bind(tiers.real(4));
        put_tiers.bind(tiers.real(5)).bind(tiers.integer(6)).step();
        put_tiers.reset();
      }
      if (version < 4) return;
      SqliteStatement pairs(source, "SELECT device,first,second,saved_at FROM interference");
      SqliteStatement put_pair(*connection, kPutPair);
      while (pairs.step()) {
        put_pair.bind(pairs.text(0)).bind(pairs.text(1)).bind(pairs.text(2)).bind(pairs.integer(3)).step();
        put_pair.reset();
      }
    } catch (const SqliteError&) {
    }
  }

  void set_aside() {
    fs::path aside = fmt::format("{}.corrupt-{}", path.string(), unix_time());
    for (int n = 2; fs::exists(aside); ++n) aside = fmt::format("{}.corrupt-{}-{}", path.string(), unix_time(), n);
    fs::rename(path, aside);
    // A journal beside it belongs to the broken file and must not be played into the new one.
    for (const char* suffix : {"-journal", "-wal", "-shm"}) {
      std::error_code ignored;
      if (fs::exists(path.string() + suffix, ignored))
        fs::rename(path.string() + suffix, aside.string() + suffix, ignored);
    }
    say(fmt::format("the cost database '{}' was corrupt; it is set aside as '{}', and a new one is begun",
                    path.string(), aside.filename().string()));
  }

  void open() {
    connection.reset();
    if (path.empty()) return use_memory("there is no cache folder; set PLIMSOLL_CACHE");
    std::error_code error;
    if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
    if (error) return use_memory(fmt::format("its folder cannot be made: {}", error.message()));
    if (fs::is_directory(path, error)) return use_memory("it is a folder");
    for (const char* suffix : {"", "-journal", "-wal", "-shm"}) {  // a pipe would keep SQLite waiting for ever
      const fs::path file = path.string() + suffix;
      if (fs::exists(file, error) && !fs::is_regular_file(file, error))
        return use_memory(fmt::format("'{}' is not a regular file", file.filename().string()));
    }
    FolderLock lock(path.string() + ".lock");
    try {
      try {
        connection = open_checked(path);
      } catch (const SqliteError& broken) {
        if (!broken.is_corrupt() && !broken.is_bad_statement()) throw;
        if (!lock.held()) throw;
        set_aside();
        connection = open_checked(path);
      }
      if (connection->is_read_only()) {
        use_memory("it cannot be written");
        copy_from_read_only();
      }
    } catch (const SqliteError& refused) {
      use_memory(refused.what());
      copy_from_read_only();
    } catch (const NewerSchema& newer) {
      use_memory(newer.what());
    } catch (const fs::filesystem_error& refused) {
      use_memory(refused.code().message());
    }
  }

  // Runs `body` on the connection; a database that turns out broken on the way is replaced and `body` tried once more.
  // A cache that fails (a full disk) is said, not thrown.
  template <class Body>
  void with_connection(const char* doing, Body body) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        return body(*connection);
      } catch (const SqliteError& error) {
        if (attempt == 0 && error.is_corrupt()) {
          open();
          continue;
        }
        kept = false;
        say(fmt::format("costs could not be {} '{}': {}", doing, path.string(), error.what()));
        return;
      }
    }
  }
};

fs::path CostDatabase::default_path() {
  auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  constexpr const char* kFile = "costs.sqlite";
  if (std::string folder = variable("PLIMSOLL_CACHE"); !folder.empty()) return fs::path(folder) / kFile;
  if (std::string folder = variable("XDG_CACHE_HOME"); !folder.empty()) return fs::path(folder) / "plimsoll" / kFile;
  std::string home = variable("HOME");
  if (home.empty()) {
    if (const passwd* user = getpwuid(getuid()); user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
  }
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "plimsoll" / kFile;
}

CostDatabase::CostDatabase(const fs::path& path, const DeviceInfo& device) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->device_key = device.key;
  impl_->open();
}

CostDatabase::~CostDatabase() = default;

bool CostDatabase::is_kept() const { return impl_->kept; }

const std::string& CostDatabase::notice() const { return impl_->notice; }

CostTable CostDatabase::load() {
  CostTable table(rates().value_or(MachineRates{}));
  impl_->with_connection("read from", [&](SqliteConnection& connection) {
    SqliteStatement rows(
        connection,
        "SELECT signature,kernel,threads,source,time_ms,spread_ms,runs,workspace,busy FROM costs WHERE device=?");
    rows.bind(impl_->device_key);
    while (rows.step()) {
      const int64_t source = rows.integer(3);
      const Cost cost{.source = static_cast<Cost::Source>(source),
                      .time_ms = rows.real(4),
                      .spread_ms = rows.real(5),
                      .runs = static_cast<int>(rows.integer(6)),
                      .workspace = {std::max<int64_t>(rows.integer(7), -1)},
                      .busy = rows.integer(8) != 0};
      if (source < 0 || source > 2 || !is_sane(cost)) continue;
      const int threads = static_cast<int>(rows.integer(2));
      table.put({rows.text(0), rows.text(1), std::abs(threads), threads < 0}, cost);
    }
    SqliteStatement pairs(connection, "SELECT first,second FROM interference WHERE device=?");
    pairs.bind(impl_->device_key);
    while (pairs.step()) table.add_conflict(pairs.text(0), pairs.text(1));
  });
  return table;
}

std::optional<MachineRates> CostDatabase::rates() {
  std::optional<MachineRates> result;
  impl_->with_connection("read from", [&](SqliteConnection& connection) {
    SqliteStatement row(connection, "SELECT gflops,memory_gb_per_s,launch_us FROM rates WHERE device=?");
    row.bind(impl_->device_key);
    if (!row.step()) return;
    const MachineRates found{.gflops = row.real(0), .memory_gb_per_s = row.real(1), .launch_us = row.real(2)};
    if (is_sane(found)) result = found;
  });
  return result;
}

void CostDatabase::save(const CostTable& table) {
  impl_->with_connection("saved in", [&](SqliteConnection& connection) {
    SqliteTransaction transaction(connection);
    // What stands there of the same source is older.
    SqliteStatement put(connection, kPutCost);
    const int64_t now = unix_time();
    for (const auto* entries : {&table.entries(), &table.in_step_entries()}) {
      for (const auto& [key, cost] : *entries) {
        if (!is_sane(cost)) continue;  // estimates are made anew
        put.bind(impl_->device_key).bind(key.signature).bind(key.kernel);
        put.bind(static_cast<int64_t>(key.spread ? -key.threads : key.threads));  // spread threads count downwards
        put.bind(static_cast<int64_t>(cost.source)).bind(cost.time_ms).bind(cost.spread_ms);
        put.bind(static_cast<int64_t>(cost.runs)).bind(now).bind(cost.workspace.count);
        put.bind(int64_t{cost.busy ? 1 : 0}).step();
        put.reset();
      }
    }
    SqliteStatement put_pair(connection, kPutPair);
    for (const auto& [first, second] : table.conflicts()) {
      put_pair.bind(impl_->device_key).bind(first).bind(second).bind(now).step();
      put_pair.reset();
    }
    transaction.commit();
  });
}

void CostDatabase::forget_sharing() {
  impl_->with_connection("removed from", [&](SqliteConnection& connection) {
    SqliteTransaction transaction(connection);
    SqliteStatement costs(connection, "DELETE FROM costs WHERE device=? AND threads<>0 AND source=?");
    costs.bind(impl_->device_key).bind(static_cast<int64_t>(Cost::Source::in_step)).step();
    SqliteStatement pairs(connection, "DELETE FROM interference WHERE device=?");
    pairs.bind(impl_->device_key).step();
    transaction.commit();
  });
}

void CostDatabase::save(const MachineRates& rates) {
  if (!is_sane(rates)) return;
  impl_->with_connection("saved in", [&](SqliteConnection& connection) {
    SqliteStatement put(connection, "INSERT OR REPLACE INTO rates VALUES (?,?,?,?,?)");
    put.bind(impl_->device_key)
        .bind(rates.gflops)
        .bind(rates.memory_gb_per_s)
        .bind(rates.launch_us)
        .bind(unix_time())
        .step();
  });
}

std::optional<TierInfo> CostDatabase::tier_rates(const std::string& key) {
  std::optional<TierInfo> result;
  impl_->with_connection("read from", [&](SqliteConnection& connection) {
    SqliteStatement row(
        connection, "SELECT out_gb_per_s,in_gb_per_s,latency_us,compute_share FROM tiers WHERE device=? AND tier=?");
    row.bind(impl_->device_key).bind(key);
    if (!row.step()) return;
    const TierInfo found{.name = {},
                         .capacity = {},
                         .out_gb_per_s = row.real(0),
                         .in_gb_per_s = row.real(1),
                         .latency_us = row.real(2),
                         .compute_share = row.real(3)};
    if (is_sane(found)) result = found;
  });
  return result;
}

void CostDatabase::save(const std::string& key, const TierInfo& tier) {
  if (!is_sane(tier)) return;
  impl_->with_connection("saved in", [&](SqliteConnection& connection) {
    SqliteStatement put(connection, "INSERT OR REPLACE INTO tiers VALUES (?,?,?,?,?,?,?)");
    put.bind(impl_->device_key).bind(key).bind(tier.out_gb_per_s).bind(tier.in_gb_per_s).bind(tier.latency_us);
    put.bind(tier.compute_share).bind(unix_time()).step();
  });
}

}  // namespace plimsoll
