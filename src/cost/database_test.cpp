#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include "plimsoll/cost.h"
#include "tests/support/temporary_folder.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const DeviceInfo kDevice{.name = "cpu", .description = "", .key = "cpu, 2 threads", .threads = 2};

class Database : public ::testing::Test {
 protected:
  static CostTable table(double ms, Cost::Source source = Cost::Source::measured) {
    CostTable result;
    result.put({"Conv(1x2)->(3)", "direct", 0}, {source, ms, 0.25, 7});
    return result;
  }
  // The one entry's time, or -1.
  double stored() {
    CostDatabase database(path, kDevice);
    const CostTable loaded = database.load();
    auto cost = loaded.find({"Conv(1x2)->(3)", "direct", 0});
    return cost ? cost->time_ms : -1;
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path.parent_path()))
      names.push_back(entry.path().filename().string());
    return names;
  }
  void expect_rebuilt(const std::string& seen_before) {
    {
      CostDatabase database(path, kDevice);
      EXPECT_THAT(database.notice(), HasSubstr("the cost database '" + path.string() +
                                               "' was corrupt; it is set aside as 'costs.sqlite.corrupt-"));
      EXPECT_TRUE(database.load().entries().empty());
      database.save(table(4));
    }
    EXPECT_EQ(stored(), 4);
    EXPECT_THAT(files(), ::testing::Contains(HasSubstr(".corrupt-")));
    for (const std::string& name : files()) {
      if (name.find(".corrupt-") == std::string::npos) continue;
      std::ifstream in(path.parent_path() / name, std::ios::binary);
      EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), seen_before);
    }
    CostDatabase again(path, kDevice);
    EXPECT_EQ(again.notice(), "");
  }
  std::string bytes() const {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  void write(const std::string& content) const {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
  }

  const TemporaryFolder temporary;
  const fs::path& folder = temporary.path();
  fs::path path = folder / "cache" / "costs.sqlite";
};

TEST_F(Database, GivesBackWhatWasSaved) {
  {
    CostDatabase database(path, kDevice);
    EXPECT_EQ(database.notice(), "");
    EXPECT_TRUE(database.is_kept());
    EXPECT_FALSE(database.rates().has_value());
    database.save(table(1.5));
    database.save(MachineRates{.gflops = 280, .memory_gb_per_s = 21, .launch_us = 3});
  }
  CostDatabase database(path, kDevice);
  const CostTable loaded = database.load();
  ASSERT_EQ(loaded.entries().size(), 1u);
  const Cost cost = *loaded.find({"Conv(1x2)->(3)", "direct", 0});
  EXPECT_EQ(cost.source, Cost::Source::measured);
  EXPECT_EQ(cost.time_ms, 1.5);
  EXPECT_EQ(cost.spread_ms, 0.25);
  EXPECT_EQ(cost.runs, 7);
  EXPECT_EQ(loaded.rates().gflops, 280);
  EXPECT_EQ(database.rates()->launch_us, 3);
}

TEST_F(Database, KeepsWhatSharingCoresCostsUntilItIsToForget) {
  {
    CostTable table(MachineRates{});
    table.put({"Add", "own", 2}, {Cost::Source::in_step, 4, 0, 1});
    table.put({"Add", "own", 2, true}, {Cost::Source::in_step, 3, 0, 1});
    table.put({"Add", "own", 0}, {Cost::Source::in_step, 2, 0, 1});
    table.add_conflict("Mul", "Add");
    CostDatabase(path, kDevice).save(table);
  }
  DeviceInfo other = kDevice;
  other.key = "cpu, 1 thread";
  EXPECT_TRUE(CostDatabase(path, other).load().conflicts().empty());
  CostDatabase database(path, kDevice);
  const CostTable loaded = database.load();
  EXPECT_EQ(loaded.conflicts(), (std::set<CostTable::OpPair>{{"Add", "Mul"}}));
  EXPECT_EQ(loaded.find_in_step({"Add", "own", 2})->time_ms, 4);
  EXPECT_EQ(loaded.find_in_step({"Add", "own", 2, true})->time_ms, 3);
  database.forget_sharing();
  const CostTable after = database.load();
  EXPECT_TRUE(after.conflicts().empty());
  EXPECT_FALSE(after.find_in_step({"Add", "own", 2}).has_value());
  EXPECT_EQ(after.find_in_step({"Add", "own", 0})->time_ms, 2);
}

TEST_F(Database, KeepsDevicesApart) {
  CostDatabase(path, kDevice).save(table(1));
  DeviceInfo other = kDevice;
  other.key = "cpu, 1 thread";
  EXPECT_TRUE(CostDatabase(path, other).load().entries().empty());
}

TEST_F(Database, KeepsTheNewerCostOfEachSourceAndNoEstimates) {
  CostDatabase(path, kDevice).save(table(1));
  CostDatabase(path, kDevice).save(table(2));
  EXPECT_EQ(stored(), 2);
  CostDatabase(path, kDevice).save(table(3, Cost::Source::in_step));
  CostDatabase(path, kDevice).save(table(4));
  CostDatabase(path, kDevice).save(table(5, Cost::Source::estimated));
  EXPECT_EQ(stored(), 4);
  const CostTable loaded = CostDatabase(path, kDevice).load();
  EXPECT_EQ(loaded.find_in_step({"Conv(1x2)->(3)", "direct", 0})->time_ms, 3);
}

TEST_F(Database, ATimeOfABusyMachineNeverReplacesOneOfAQuietMachine) {
  const CostKey key{"Conv(1x2)->(3)", "direct", 0};
  auto save = [&](double ms, bool busy) {
    CostTable one;
    one.put(key, {.source = Cost::Source::measured, .time_ms = ms, .runs = 3, .busy = busy});
    CostDatabase(path, kDevice).save(one);
    return *CostDatabase(path, kDevice).load().find(key);
  };
  EXPECT_EQ(save(9, true).time_ms, 9);  // nothing better is known
  EXPECT_TRUE(save(8, true).busy);
  EXPECT_EQ(save(8, true).time_ms, 8);
  EXPECT_EQ(save(2, false).time_ms, 2);
  EXPECT_FALSE(save(2, false).busy);
  EXPECT_EQ(save(7, true).time_ms, 2);
  EXPECT_EQ(save(3, false).time_ms, 3);
}

TEST_F(Database, AnEarlierSchemaIsTakenOver) {
  for (int version = 1; version <= 4; ++version) {
    SCOPED_TRACE(version);
    fs::remove_all(path.parent_path());
    fs::create_directories(path.parent_path());
    std::string script =
        "CREATE TABLE costs (device TEXT NOT NULL, signature TEXT NOT NULL, kernel TEXT NOT NULL, threads INTEGER NOT "
        "NULL, source INTEGER NOT NULL, time_ms REAL NOT NULL, spread_ms REAL NOT NULL, runs INTEGER NOT NULL, saved_at "
        "INTEGER NOT NULL";
    if (version >= 3) script += ", workspace INTEGER NOT NULL DEFAULT -1";
    script +=
        ", PRIMARY KEY (device, signature, kernel, threads, source)) WITHOUT ROWID;"
        "CREATE TABLE rates (device TEXT PRIMARY KEY, gflops REAL NOT NULL, memory_gb_per_s REAL NOT NULL, launch_us "
        "REAL NOT NULL, saved_at INTEGER NOT NULL) WITHOUT ROWID;"
        "INSERT INTO costs (device,signature,kernel,threads,source,time_ms,spread_ms,runs,saved_at) VALUES ('cpu, 2 "
        "threads','Conv(1x2)->(3)','direct',0,1,1.5,0,7,0);"
        "PRAGMA application_id = " +
        std::to_string(0x504c4d53) + "; PRAGMA user_version = " + std::to_string(version);
    sqlite3* old = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &old), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(old, script.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(old);
    sqlite3_close(old);
    CostDatabase database(path, kDevice);
    EXPECT_EQ(database.notice(), "");
    const Cost cost = *database.load().find({"Conv(1x2)->(3)", "direct", 0});
    EXPECT_EQ(cost.time_ms, 1.5);
    EXPECT_FALSE(cost.busy);
    database.save(table(3));
    EXPECT_EQ(stored(), 3);
  }
}

TEST_F(Database, DoesNotKeepWhatCannotBeATime) {
  CostDatabase(path, kDevice).save(table(std::nan("")));
  CostDatabase(path, kDevice).save(table(-1));
  EXPECT_EQ(stored(), -1);
}

TEST_F(Database, ATruncatedFileIsSetAsideAndRebuilt) {
  {
    CostTable many;
    for (int i = 0; i < 2000; ++i)
      many.put({"op " + std::to_string(i), "kernel", 0}, {Cost::Source::measured, 1.0 * i, 0, 3});
    CostDatabase(path, kDevice).save(many);
  }
  const std::string whole = bytes();
  ASSERT_GT(whole.size(), 20000u);
  write(whole.substr(0, whole.size() / 2));
  expect_rebuilt(whole.substr(0, whole.size() / 2));
}

TEST_F(Database, RandomBytesAreSetAsideAndTheDatabaseRebuilt) {
  std::mt19937 draw(1);
  std::string noise;
  for (int i = 0; i < 5000; ++i) noise += static_cast<char>(draw());
  write(noise);
  expect_rebuilt(noise);
}

TEST_F(Database, NoDamageToTheFileEndsTheProgram) {
  CostTable many;
  for (int i = 0; i < 300; ++i)
    many.put({"op " + std::to_string(i), "kernel", 0}, {Cost::Source::measured, 1.0 * i, 0, 3});
  CostDatabase(path, kDevice).save(many);
  const std::string whole = bytes();
  for (uint32_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 draw(seed);
    std::string damaged = whole;
    for (uint32_t n = 1 + draw() % 40; n > 0; --n) damaged[draw() % damaged.size()] = static_cast<char>(draw());
    if (draw() % 3 == 0) damaged.resize(draw() % damaged.size());
    fs::remove_all(path.parent_path());
    write(damaged);
    CostDatabase database(path, kDevice);
    const CostTable loaded = database.load();
    for (const auto& [key, cost] : loaded.entries()) {
      EXPECT_TRUE(std::isfinite(cost.time_ms) && cost.time_ms >= 0);
    }
    database.save(table(4));
    database.rates();
  }
}

TEST_F(Database, DamageWhileItIsOpenIsRepairedToo) {
  CostDatabase database(path, kDevice);
  database.save(table(1));
  write(std::string(8192, 'x'));
  database.save(table(2));
  EXPECT_THAT(database.notice(), HasSubstr("was corrupt"));
  EXPECT_EQ(stored(), 2);
}

TEST_F(Database, ADatabaseOfAnotherProgramIsSetAside) {
  fs::create_directories(path.parent_path());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "CREATE TABLE costs (apples); PRAGMA user_version = 1", nullptr, nullptr, nullptr),
            SQLITE_OK);
  sqlite3_close(other);
  expect_rebuilt(bytes());
}

TEST_F(Database, ANewerSchemaIsLeftAloneAndSaid) {
  CostDatabase(path, kDevice).save(table(1));
  sqlite3* newer = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &newer), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(newer, "PRAGMA user_version = 9", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(newer);
  const std::string before = bytes();
  CostDatabase database(path, kDevice);
  EXPECT_THAT(database.notice(), HasSubstr("it was written by a newer version (schema 9, this one knows 5)"));
  database.save(table(2));
  EXPECT_EQ(bytes(), before);
}

TEST_F(Database, AFolderInItsPlaceMeansCostsInMemory) {
  fs::create_directories(path);
  CostDatabase database(path, kDevice);
  EXPECT_EQ(database.notice(), "the cost database '" + path.string() +
                                   "' cannot be used: it is a folder; costs are kept for this run only");
  database.save(table(1));
  EXPECT_EQ(database.load().entries().size(), 1u);
  EXPECT_TRUE(fs::is_directory(path));
}

TEST_F(Database, APipeInItsPlaceMeansCostsInMemoryAndNoWaiting) {
  for (const char* suffix : {"", "-journal"}) {
    const fs::path pipe = path.string() + suffix;
    fs::create_directories(pipe.parent_path());
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    CostDatabase database(path, kDevice);
    EXPECT_EQ(database.notice(), "the cost database '" + path.string() + "' cannot be used: '" +
                                     pipe.filename().string() +
                                     "' is not a regular file; costs are kept for this run only");
    fs::remove(pipe);
  }
}

TEST_F(Database, AFolderThatCannotBeMadeMeansCostsInMemory) {
  std::ofstream(folder / "file") << "x";
  CostDatabase database(folder / "file" / "cache" / "costs.sqlite", kDevice);
  EXPECT_THAT(database.notice(), HasSubstr("its folder cannot be made"));
  EXPECT_FALSE(database.is_kept());
  database.save(table(1));
  EXPECT_EQ(database.load().entries().size(), 1u);
}

TEST_F(Database, NoCacheFolderMeansCostsInMemory) {
  CostDatabase database("", kDevice);
  EXPECT_THAT(database.notice(), HasSubstr("set PLIMSOLL_CACHE"));
  database.save(table(1));
  EXPECT_EQ(database.load().entries().size(), 1u);
}

TEST_F(Database, AReadOnlyFolderIsReadAndNotWritten) {
  CostDatabase(path, kDevice).save(table(1));
  chmod(folder.c_str(), 0755);
  chmod(path.c_str(), 0444);
  chmod((path.string() + ".lock").c_str(), 0444);
  chmod(path.parent_path().c_str(), 0555);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(77);  // modes do not bind root
    CostDatabase database(path, kDevice);
    const bool said = database.notice().find("costs are kept for this run only") != std::string::npos;
    const bool read = database.load().entries().size() == 1;
    CostTable more = table(2);
    more.put({"another", "kernel", 0}, {Cost::Source::measured, 1, 0, 3});
    database.save(more);
    _exit((said ? 0 : 1) + (read ? 0 : 2) + (database.load().entries().size() == 2 ? 0 : 4));
  }
  int status = 0;
  waitpid(child, &status, 0);
  chmod(path.parent_path().c_str(), 0755);
  chmod(path.c_str(), 0644);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "cannot give up root here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(stored(), 1);
}

TEST_F(Database, SeveralProcessesWriteAtOnceAndNothingIsLost) {
  constexpr int kProcesses = 4, kSaves = 8;
  write("this is no database");  // all of them find it broken; one replaces it
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      CostDatabase database(path, kDevice);
      for (int i = 0; i < kSaves; ++i) {
        CostTable mine;
        mine.put({"op " + std::to_string(p * 1000 + i), "kernel", 0}, {Cost::Source::measured, 1, 0, 3});
        database.save(mine);
      }
      _exit(database.notice().find("could not be") == std::string::npos ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CostDatabase database(path, kDevice);
  EXPECT_EQ(database.load().entries().size(), static_cast<size_t>(kProcesses * kSaves));
  int set_aside = 0;
  for (const std::string& name : files()) set_aside += name.find(".corrupt-") != std::string::npos;
  EXPECT_EQ(set_aside, 1);
}

TEST_F(Database, LiesInTheUsersCacheFolder) {
  const char* names[] = {"PLIMSOLL_CACHE", "XDG_CACHE_HOME", "HOME"};
  std::map<std::string, std::optional<std::string>> saved;
  for (const char* name : names)
    saved[name] = std::getenv(name) ? std::optional<std::string>(std::getenv(name)) : std::nullopt;
  setenv("PLIMSOLL_CACHE", "/a", 1);
  setenv("XDG_CACHE_HOME", "/b", 1);
  setenv("HOME", "/c", 1);
  EXPECT_EQ(CostDatabase::default_path(), "/a/costs.sqlite");
  unsetenv("PLIMSOLL_CACHE");
  EXPECT_EQ(CostDatabase::default_path(), "/b/plimsoll/costs.sqlite");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(CostDatabase::default_path(), "/c/.cache/plimsoll/costs.sqlite");
  for (const char* name : names) saved[name] ? setenv(name, saved[name]->c_str(), 1) : unsetenv(name);
}

}  // namespace
}  // namespace plimsoll
