// The one door to SQLite: its errors become exceptions with the failed statement as text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>

struct sqlite3;
struct sqlite3_stmt;

namespace plimsoll {

// Caught inside src/cost: a cache that cannot be used never ends the program.
class SqliteError : public std::runtime_error {
 public:
  SqliteError(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }
  static SqliteError corrupt(const std::string& message);
  bool is_corrupt() const;        // the file is not a database, or a broken one
  bool is_bad_statement() const;  // the statement does not fit the tables

 private:
  int code_;
};

class SqliteConnection {
 public:
  enum class Mode { read_write_create, read_only, in_memory };
  SqliteConnection(const std::filesystem::path& path, Mode mode);
  ~SqliteConnection();
  SqliteConnection(const SqliteConnection&) = delete;
  SqliteConnection& operator=(const SqliteConnection&) = delete;

  void run(const std::string& sql);
  int64_t integer(const std::string& sql);  // the first column of the first row; 0 without rows
  std::string text(const std::string& sql);
  bool is_read_only() const;
  sqlite3* handle() const { return handle_; }
  [[noreturn]] void fail(int code, const std::string& doing) const;

 private:
  sqlite3* handle_ = nullptr;
};

// A prepared statement: bind in order, step through rows.
class SqliteStatement {
 public:
  SqliteStatement(SqliteConnection& connection, const std::string& sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  SqliteStatement& bind(const std::string& value);
  SqliteStatement& bind(double value);
  SqliteStatement& bind(int64_t value);
  bool step();   // true: a row is there
  void reset();  // ready to be bound again

  std::string text(int column) const;
  double real(int column) const;
  int64_t integer(int column) const;

 private:
  SqliteConnection& connection_;
  std::string sql_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

// Begins at once, as a writer; rolls back unless committed.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(SqliteConnection& connection);
  ~SqliteTransaction();
  void commit();

 private:
  SqliteConnection& connection_;
  bool done_ = false;
};

}  // namespace plimsoll
