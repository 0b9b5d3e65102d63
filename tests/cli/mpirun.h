// Trainings whose processes mpirun starts on this machine.
#pragma once

#include "tests/cli/program.h"

namespace plimsoll::testing {

class MpiCli : public Cli {
 protected:
  // What of these tests starts several processes; the others run everywhere.
  void need_mpirun() {
    if (std::system("mpirun --version > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "mpirun is not there (Debian: openmpi-bin)";
    if (!std::filesystem::exists(PLIMSOLL_BINARY_DIR "/libplimsoll_mpi.so"))
      GTEST_SKIP() << "this build has no MPI (Debian: libopenmpi-dev)";
    for (const char* allow : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"}) ::setenv(allow, "1", 1);
    ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    ::setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
    if (std::system("timeout 60 mpirun -n 2 true > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "mpirun cannot start processes here";
  }

  // `arguments`: mpirun's.
  pid_t start_mpirun(const std::string& arguments) {
    const std::string command =
        "exec " + launcher_ + "mpirun " + arguments + " > " + path("out") + " 2> " + path("err");
    const pid_t child = ::fork();
    if (child == 0) {
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    return child;
  }

  // After an abort, Debian 12's mpirun (Open MPI 4.1.4 with PMIx 4.2.2) sometimes waits without end, in PMIx_server_finalize,
  // for a lock that it has freed. All of its processes have ended then. It is killed, so that the exit code is lost.
  Outcome wait_for_mpirun(pid_t launcher) {
    const auto runs_ours = [launcher] {
      for (const pid_t process : family_of(launcher)) {
        if (slurp("/proc/" + std::to_string(process) + "/cmdline").starts_with(kProgram)) return true;
      }
      return false;
    };
    auto seen = std::chrono::steady_clock::time_point::max();
    launcher_hung_ = false;
    return wait(launcher, [&] {
      const auto now = std::chrono::steady_clock::now();
      if (runs_ours()) {
        seen = now;
      } else if (seen != std::chrono::steady_clock::time_point::max() && now - seen > kToEnd && !launcher_hung_) {
        launcher_hung_ = true;
        for (const pid_t process : family_of(launcher)) ::kill(process, SIGKILL);
      }
    });
  }
  Outcome run_mpirun(const std::string& arguments) {
    Outcome outcome = wait_for_mpirun(start_mpirun(arguments));
    for (int again = 0; launcher_hung_ && again < 2; ++again) outcome = wait_for_mpirun(start_mpirun(arguments));
    return outcome;
  }

  static std::vector<pid_t> children_of(pid_t parent) {
    std::ifstream file("/proc/" + std::to_string(parent) + "/task/" + std::to_string(parent) + "/children");
    std::vector<pid_t> children;
    for (pid_t child = 0; file >> child;) children.push_back(child);
    return children;
  }
  static void wait_for_file(const std::string& file) {
    for (int i = 0; i < 6000 && !std::filesystem::exists(file); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  static constexpr const char* kProgram = PLIMSOLL_BINARY_DIR "/plimsoll";
  static constexpr std::chrono::seconds kToEnd{10};
  std::string launcher_;  // before mpirun
  bool launcher_hung_ = false;
};

}  // namespace plimsoll::testing
