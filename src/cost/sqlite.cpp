#include "cost/sqlite.h"

#include <fmt/format.h>
#include <sqlite3.h>

namespace plimsoll {
namespace {
constexpr int kBusyTimeoutMs = 10000;
}

SqliteError SqliteError::corrupt(const std::string& message) { return {SQLITE_CORRUPT, message}; }

bool SqliteError::is_bad_statement() const { return (code_ & 0xff) == SQLITE_ERROR; }

bool SqliteError::is_corrupt() const {
  const int primary = code_ & 0xff;
  return primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB || primary == SQLITE_FORMAT;
}

SqliteConnection::SqliteConnection(const std::filesystem::path& path, Mode mode) {
  const int flags = mode == Mode::in_memory   ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MEMORY
                    : mode == Mode::read_only ? SQLITE_OPEN_READONLY
                                              : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  const std::string name = mode == Mode::in_memory ? ":memory:" : path.string();
  const int code = sqlite3_open_v2(name.c_str(), &handle_, flags, nullptr);
  if (code != SQLITE_OK) {
    const std::string why = handle_ != nullptr ? sqlite3_errmsg(handle_) : sqlite3_errstr(code);
    sqlite3_close_v2(handle_);
    throw SqliteError(code, fmt::format("sqlite3_open('{}'): {}", name, why));
  }
  sqlite3_extended_result_codes(handle_, 1);
  sqlite3_busy_timeout(handle_, kBusyTimeoutMs);
}

SqliteConnection::~SqliteConnection() { sqlite3_close_v2(handle_); }

void SqliteConnection::fail(int code, const std::string& doing) const {
  throw SqliteError(code, fmt::format("{}: {}", doing, sqlite3_errmsg(handle_)));
}

void SqliteConnection::run(const std::string& sql) {
  const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
  if (code != SQLITE_OK) fail(code, sql);
}

int64_t SqliteConnection::integer(const std::string& sql) {
  SqliteStatement statement(*this, sql);
  return statement.step() ? statement.integer(0) : 0;
}

std::string SqliteConnection::text(const std::string& sql) {
  SqliteStatement statement(*this, sql);
  return statement.step() ? statement.text(0) : "";
}

bool SqliteConnection::is_read_only() const { return sqlite3_db_readonly(handle_, "main") == 1; }

SqliteStatement::SqliteStatement(SqliteConnection& connection, const std::string& sql)
    : connection_(connection), sql_(sql) {
  const int code = sqlite3_prepare_v2(connection.handle(), sql.c_str(), -1, &statement_, nullptr);
  if (code != SQLITE_OK) connection.fail(code, sql);
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

SqliteStatement& SqliteStatement::bind(const std::string& value) {
  const int code =
      sqlite3_bind_text(statement_, ++bound_, value.c_str(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
  if (code != SQLITE_OK) connection_.fail(code, sql_);
  return *this;
}
SqliteStatement& SqliteStatement::bind(double value) {
  const int code = sqlite3_bind_double(statement_, ++bound_, value);
  if (code != SQLITE_OK) connection_.fail(code, sql_);
  return *this;
}
SqliteStatement& SqliteStatement::bind(int64_t value) {
  const int code = sqlite3_bind_int64(statement_, ++bound_, value);
  if (code != SQLITE_OK) connection_.fail(code, sql_);
  return *this;
}

bool SqliteStatement::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) connection_.fail(code, sql_);
  return false;
}

void SqliteStatement::reset() {
  sqlite3_reset(statement_);
  bound_ = 0;
}

std::string SqliteStatement::text(int column) const {
  const unsigned char* value = sqlite3_column_text(statement_, column);
  const int bytes = sqlite3_column_bytes(statement_, column);
  return value == nullptr ? "" : std::string(reinterpret_cast<const char*>(value), bytes);
}
double SqliteStatement::real(int column) const { return sqlite3_column_double(statement_, column); }
int64_t SqliteStatement::integer(int column) const { return sqlite3_column_int64(statement_, column); }

SqliteTransaction::SqliteTransaction(SqliteConnection& connection) : connection_(connection) {
  connection_.run("BEGIN IMMEDIATE");
}
SqliteTransaction::~SqliteTransaction() {
  if (!done_) sqlite3_exec(connection_.handle(), "ROLLBACK", nullptr, nullptr, nullptr);
}
void SqliteTransaction::commit() {
  connection_.run("COMMIT");
  done_ = true;
}

}  // namespace plimsoll
