// The program as a process, with a folder of its own for what it reads and writes.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace plimsoll::testing {

struct Outcome {
  int code = -1;
  std::string out, err;
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> result;
    std::istringstream stream(out);
    for (std::string line; std::getline(stream, line);) result.push_back(nlohmann::json::parse(line));
    return result;
  }
};

// The bytes that a refused budget's message says are needed.
inline int64_t bytes_needed(const Outcome& refused) {
  EXPECT_EQ(refused.code, 3) << refused.err;
  const size_t end = refused.err.find(" bytes) are needed"), begin = refused.err.rfind('(', end);
  EXPECT_NE(end, std::string::npos) << refused.err;
  return end == std::string::npos ? 0 : std::stoll(refused.err.substr(begin + 1, end - begin - 1));
}

class Cli : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::temp_directory_path() / ("plimsoll_cli_" + std::to_string(::getpid()) +
                                                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    ::setenv("PLIMSOLL_CACHE", (folder_ / "cache").c_str(), 1);
    ::setenv("PLIMSOLL_DATA", PLIMSOLL_SOURCE_DIR "/data", 1);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  static std::string slurp(const std::filesystem::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Of a training, from the last line that it wrote with --json.
  static std::string weights_sha256(const std::filesystem::path& json_lines) {
    std::ifstream in(json_lines);
    std::string last;
    for (std::string line; std::getline(in, line);) last = line;
    return nlohmann::json::parse(last).value("weights_sha256", "");
  }

  pid_t start(const std::string& arguments) {
    const std::string command =
        "exec " PLIMSOLL_BINARY_DIR "/plimsoll " + arguments + " > " + path("out") + " 2> " + path("err");
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    return child;
  }
  Outcome wait(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), slurp(path("out")), slurp(path("err"))};
  }
  Outcome run(const std::string& arguments) { return wait(start(arguments)); }

  std::filesystem::path folder_;
};

}  // namespace plimsoll::testing
