// The program as a process, with a folder of its own for what it reads and writes.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
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
    std::ostringstream text;
    text << in.rdbuf();  // what cannot be read any more, as of a process that has ended, is no error
    return text.str();
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
  // `watch` is called now and then meanwhile.
  Outcome wait(pid_t child, const std::function<void()>& watch = {}) {
    int status = 0;
    for (const auto begin = std::chrono::steady_clock::now(); ::waitpid(child, &status, WNOHANG) == 0;
         std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
      if (std::chrono::steady_clock::now() - begin < kPatience) {
        if (watch) watch();
        continue;
      }
      const std::vector<pid_t> all = family_of(child);
      for (const pid_t process : all) ADD_FAILURE() << "it hangs: " << describe(process);
      for (const pid_t process : all) ::kill(process, SIGKILL);
      ::waitpid(child, &status, 0);
      break;
    }
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), slurp(path("out")), slurp(path("err"))};
  }
  Outcome run(const std::string& arguments) { return wait(start(arguments)); }
  // Where no file may become longer than so many bytes.
  Outcome run_with_short_files(const std::string& arguments, rlim_t most) {
    rlimit before{};
    ::getrlimit(RLIMIT_FSIZE, &before);
    rlimit small = before;
    small.rlim_cur = most;
    ::setrlimit(RLIMIT_FSIZE, &small);
    const pid_t child = start(arguments);
    ::setrlimit(RLIMIT_FSIZE, &before);
    return wait(child);
  }

  // Whether the program has a handler for the signal now; the shell that it is started by has one for SIGINT.
  static bool catches(pid_t child, int signal) {
    std::error_code gone;
    const auto binary = std::filesystem::read_symlink("/proc/" + std::to_string(child) + "/exe", gone);
    if (gone || binary.filename() != "plimsoll") return false;
    const std::string status = slurp("/proc/" + std::to_string(child) + "/status");
    const size_t at = status.find("SigCgt:");
    return at != std::string::npos && (std::stoull(status.substr(at + 7), nullptr, 16) >> (signal - 1) & 1) != 0;
  }

  // Their folders; none where it has ended.
  static std::vector<std::filesystem::path> threads_of(pid_t process) {
    std::vector<std::filesystem::path> threads;
    std::error_code gone;
    std::filesystem::directory_iterator entry("/proc/" + std::to_string(process) + "/task", gone);
    for (; !gone && entry != std::filesystem::directory_iterator(); entry.increment(gone))
      threads.push_back(entry->path());
    return threads;
  }
  // It and all below it.
  static std::vector<pid_t> family_of(pid_t process) {
    std::vector<pid_t> all{process};
    for (size_t i = 0; i < all.size(); ++i) {
      for (const std::filesystem::path& thread : threads_of(all[i])) {
        std::ifstream children(thread / "children");
        for (pid_t child = 0; children >> child;) all.push_back(child);
      }
    }
    return all;
  }
  // Its command line, and by thread the state and where in the system it waits.
  static std::string describe(pid_t process) {
    std::string text = slurp("/proc/" + std::to_string(process) + "/cmdline");
    std::replace(text.begin(), text.end(), '\0', ' ');
    text = std::to_string(process) + " " + text;
    for (const std::filesystem::path& thread : threads_of(process)) {
      const std::string stat = slurp(thread / "stat");
      text +=
          "\n  " + stat.substr(0, stat.find(')') + 3) + " " + slurp(thread / "wchan") + " " + slurp(thread / "syscall");
    }
    return text;
  }

  // No program of these tests runs for as long; who ends a test from outside never says what it waited for.
  static constexpr std::chrono::seconds kPatience{300};
  std::filesystem::path folder_;
};

}  // namespace plimsoll::testing
