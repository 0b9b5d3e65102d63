// The CUDA device as a user meets it, behind a module that stands for CUDA (tests/cuda/fake_module.cpp).
#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "device/cuda/device.h"
#include "plimsoll/cost.h"
#include "tests/cli/images.h"
#include "tests/cli/program.h"
#include "tests/cuda/fake_door.h"

namespace {

using plimsoll::testing::Cli;
using plimsoll::testing::Outcome;
using ::testing::HasSubstr;

class Cuda : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    ::setenv("PLIMSOLL_CUDA_MODULE", PLIMSOLL_BINARY_DIR "/libplimsoll_cuda_fake.so", 1);
  }
  void TearDown() override {
    for (const char* name : {"PLIMSOLL_CUDA_MODULE", "PLIMSOLL_FAKE_FAIL", "PLIMSOLL_FAKE_DEVICES",
                             "PLIMSOLL_FAKE_REFUSE", "PLIMSOLL_FAKE_STATUS", "PLIMSOLL_FAKE_CAPABILITY",
                             "PLIMSOLL_FAKE_CALLS", "PLIMSOLL_FAKE_LOADS", "PLIMSOLL_FAKE_NCCL"}) {
      ::unsetenv(name);
    }
    Cli::TearDown();
  }
  // So that nothing is probed, on a busy machine either, where what was found is not kept.
  static void know_rates() {
    using namespace plimsoll;
    const auto device = cuda::open_behind(std::make_shared<plimsoll::testing::FakeDoor>(), "cuda:0", false);
    CostDatabase database(CostDatabase::default_path(), device->info());
    database.save(MachineRates{});
    database.save("host",
                  TierInfo{.name = "host", .capacity = 1_GiB, .out_gb_per_s = 10, .in_gb_per_s = 10, .latency_us = 10});
  }
  static std::string train(const std::string& more) {
    return "train lenet --data digits --batch 4 --device cuda:0 --exact --costs estimated --evaluate-every 0 --json - " +
           more;
  }
  static nlohmann::json done(const Outcome& outcome) {
    for (const nlohmann::json& line : outcome.lines()) {
      if (line.at("event") == "done") return line;
    }
    return nullptr;
  }
};

TEST_F(Cuda, IsListedWithTheReasonWhyItIsNotThere) {
  EXPECT_THAT(run("devices").out, HasSubstr("cuda:0"));
  ::setenv("PLIMSOLL_FAKE_DEVICES", "0", 1);
  EXPECT_THAT(run("devices").out, HasSubstr("no CUDA device"));
  Outcome none = run(train("--steps 1"));
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("device 'cuda:0' is not there: no CUDA device"));
  ::setenv("PLIMSOLL_CUDA_MODULE", path("nowhere.so").c_str(), 1);
  EXPECT_THAT(run("devices").out, HasSubstr("there is no file"));
  EXPECT_THAT(run("train lenet --device cuda:0").err, HasSubstr("there is no file"));
}

TEST_F(Cuda, TrainsTheSameWeightsWhateverTheMemoryInCapturedSteps) {
  const nlohmann::json free = done(run(train("--steps 4")));
  ASSERT_FALSE(free.is_null());
  EXPECT_TRUE(free.at("captured").get<bool>());
  EXPECT_EQ(free.at("budget_bytes").get<int64_t>(), int64_t{2} << 30);  // what is free, less a reserve
  const nlohmann::json tight = done(run(train("--steps 4 --memory 180KiB --host-memory 64MiB")));
  ASSERT_FALSE(tight.is_null()) << slurp(path("err"));
  EXPECT_EQ(tight.at("weights_sha256"), free.at("weights_sha256"));
  EXPECT_LT(tight.at("peak_bytes").get<int64_t>(), free.at("peak_bytes").get<int64_t>());
  const nlohmann::json disk = done(run(train("--steps 4 --memory 180KiB --spill " + folder_.string() + ":64MiB")));
  ASSERT_FALSE(disk.is_null()) << slurp(path("err"));
  EXPECT_EQ(disk.at("weights_sha256"), free.at("weights_sha256"));
  EXPECT_FALSE(disk.at("captured").get<bool>());  // the host copies in the middle of a step
  ::setenv("PLIMSOLL_FAKE_DEVICES", "2", 1);
  const nlohmann::json peer = done(run(train("--steps 4 --memory 180KiB --peer cuda:1=64MiB")));
  ASSERT_FALSE(peer.is_null()) << slurp(path("err"));
  EXPECT_EQ(peer.at("weights_sha256"), free.at("weights_sha256"));
}

TEST_F(Cuda, ABatchHasASecondBufferWhereThereIsRoomForItAndTheSameBitsWhereThereIsNot) {
  know_rates();
  const std::string planned = "plan lenet --data digits --batch 4 --exact --json - --device ";
  const nlohmann::json plan = run(planned + "cuda:0").lines().at(0);
  const int64_t batch = plan.at("second_buffer_bytes");
  EXPECT_EQ(batch, 4 * 8 * 8 * 4 + 64);
  EXPECT_EQ(plan.at("input_buffers"), 2);
  EXPECT_EQ(plan.at("peak_by_role").at("next batch"), batch);
  EXPECT_GT(plan.at("feed_ms"), 0);
  EXPECT_GE(plan.at("wall_time_ms"), plan.at("step_time_ms"));
  EXPECT_THAT(run("plan lenet --data digits --batch 4 --device cuda:0").out, HasSubstr("two buffers"));
  const int64_t least = plan.at("minimum_bytes");
  const std::string in_least = " --memory " + std::to_string(least);
  const nlohmann::json tight = run(planned + "cuda:0" + in_least).lines().at(0);
  EXPECT_EQ(tight.at("input_buffers"), 1);
  EXPECT_EQ(tight.at("arena_bytes"), least);
  EXPECT_NEAR(tight.at("wall_time_ms").get<double>(),
              tight.at("step_time_ms").get<double>() + tight.at("feed_ms").get<double>(), 1e-9);
  EXPECT_THAT(run("plan lenet --data digits --batch 4 --exact --device cuda:0" + in_least).out,
              HasSubstr("one buffer"));
  EXPECT_EQ(run(planned + "cpu").lines().at(0).at("wall_time_ms"), nullptr);

  const std::string epochs =
      "train lenet --data digits --batch 300 --device cuda:0 --exact --costs estimated --epochs 2 --accumulate 2 --json - ";
  const Outcome free = run(epochs);
  ASSERT_EQ(free.code, 0) << free.err;
  EXPECT_EQ(free.lines().front().at("input_buffers"), 2);
  EXPECT_EQ(done(free).at("peak_bytes"), free.lines().front().at("peak_bytes"));
  EXPECT_TRUE(done(free).at("captured").get<bool>());
  EXPECT_GT(done(free).at("predicted_wall_time_ms"), 0);
  const std::string file = path("plan.json");
  const nlohmann::json small =
      run("plan lenet --data digits --batch 300 --device cuda:0 --exact --accumulate 2 --json - --save " + file)
          .lines()
          .at(0);
  EXPECT_EQ(small.at("input_buffers"), 2);
  EXPECT_EQ(run("verify " + file).code, 0);
  const Outcome saved = run("train --plan " + file + " --data digits --costs estimated --epochs 2 --json -");
  ASSERT_EQ(saved.code, 0) << saved.err;
  EXPECT_EQ(saved.lines().front().at("input_buffers"), 2);
  EXPECT_EQ(done(saved).at("weights_sha256"), done(free).at("weights_sha256"));
  const Outcome less = run(epochs + "--memory " + std::to_string(small.at("minimum_bytes").get<int64_t>()));
  ASSERT_EQ(less.code, 0) << less.err;
  EXPECT_EQ(less.lines().front().at("input_buffers"), 1);
  for (const char* same : {"weights_sha256", "loss", "accuracy"}) EXPECT_EQ(done(less).at(same), done(free).at(same));
}

// The step beside which the next batch turns out to be damaged is done and saved, as on the CPU.
TEST_F(Cuda, ADamagedImageLosesNoStepBeforeIt) {
  know_rates();
  for (int i = 0; i < 12; ++i) {
    for (const char* name : {"train/a", "train/b", "val/a", "val/b"}) {
      const std::filesystem::path file = folder_ / "images" / name / (std::to_string(i) + ".png");
      plimsoll::testing::write_png(file, static_cast<uint8_t>(20 * i), 100, 200);
      if (i == 7 && name == std::string("train/a"))
        std::filesystem::resize_file(file, std::filesystem::file_size(file) - 40);
    }
  }
  const auto steps_before = [&](const std::string& device) {
    const Outcome outcome =
        run("train lenet --data images:" + path("images") +
            " --image-size 32 --batch 1 --exact --costs estimated --evaluate-every 0 --json - --seed 3"
            " --checkpoint " +
            path((device + ".safetensors").c_str()) + " --checkpoint-every 1 --device " + device);
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("7.png"));
    int64_t steps = 0;
    for (const nlohmann::json& line : outcome.lines()) steps += line.at("event") == "step";
    const Outcome resumed =
        run("train --evaluate-every 0 --costs estimated --json - --resume " + path((device + ".safetensors").c_str()));
    for (const nlohmann::json& line : resumed.lines()) EXPECT_NE(line.at("event"), "step") << "it was saved later";
    return steps;
  };
  const int64_t on_cpu = steps_before("cpu");
  EXPECT_GT(on_cpu, 1);
  EXPECT_LT(on_cpu, 23);
  EXPECT_EQ(steps_before("cuda:0"), on_cpu);
}

TEST_F(Cuda, APeerIsAnotherGpuThatIsThere) {
  Outcome itself = run(train("--steps 1 --peer cuda:0"));
  EXPECT_EQ(itself.code, 2);
  EXPECT_THAT(itself.err, HasSubstr("--peer: 'cuda:0' is no other GPU than 'cuda:0'"));
  Outcome missing = run(train("--steps 1 --peer cuda:1"));
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("device 'cuda:1' is not there"));
  EXPECT_THAT(run("train lenet --peer cuda:0 --steps 1").err, HasSubstr("device 'cpu' has no peers"));
  EXPECT_THAT(run(train("--peer cuda:1=much")).err, HasSubstr("--peer cuda:1=much: "));
}

TEST_F(Cuda, ACallThatFailsIsNamedAndLeavesTheLastCheckpointGood) {
  know_rates();
  const std::string file = path("c.safetensors");
  const nlohmann::json whole = done(run(train("--steps 20")));
  ASSERT_FALSE(whole.is_null());
  for (const char* call : {"cudaGraphLaunch:9", "cudaStreamSynchronize:300", "cudaMemcpyAsync:300"}) {
    SCOPED_TRACE(call);
    std::filesystem::remove(file);
    ::setenv("PLIMSOLL_FAKE_FAIL", call, 1);
    const Outcome failed = run(train("--steps 20 --checkpoint-every 2 --checkpoint " + file));
    EXPECT_EQ(failed.code, 4) << failed.err;
    EXPECT_THAT(failed.err, HasSubstr(std::string(call).substr(0, std::string(call).find(':'))));
    ::unsetenv("PLIMSOLL_FAKE_FAIL");
    const nlohmann::json resumed = done(run("train --json - --costs estimated --evaluate-every 0 --resume " + file));
    ASSERT_FALSE(resumed.is_null()) << slurp(path("err"));
    EXPECT_GT(resumed.at("steps").get<int64_t>(), 0);
    EXPECT_LT(resumed.at("steps").get<int64_t>(), 20);
    EXPECT_EQ(resumed.at("weights_sha256"), whole.at("weights_sha256"));
  }
}

// The script that checks a GPU, with all its checks on tiny networks: what is wrong with the script is found here.
class GpuCheck : public Cuda {
 protected:
  // What a packed build is, and in place of what a machine with a GPU has: nvidia-smi, and a Python with PyTorch.
  void SetUp() override {
    Cuda::SetUp();
    if (std::system("python3 -c '' 2> /dev/null") != 0)
      GTEST_SKIP() << "gpu_check is a Python script, and there is no python3";
    ::setenv("PLIMSOLL_FAKE_DEVICES", "2", 1);
    namespace fs = std::filesystem;
    fs::create_directories(folder_ / "packed" / "lib");
    fs::create_directories(folder_ / "tools");
    for (const char* program : {"plimsoll", "test_tests_conformance", "test_ops"}) {
      fs::create_symlink(fs::path(PLIMSOLL_BINARY_DIR) / program, folder_ / "packed" / program);
    }
    if (const fs::path mpi = PLIMSOLL_BINARY_DIR "/libplimsoll_mpi.so"; fs::exists(mpi)) {
      fs::create_symlink(mpi, folder_ / "packed" / "libplimsoll_mpi.so");
      ::setenv("PLIMSOLL_FAKE_NCCL", folder_.c_str(), 1);
    }
    std::ofstream(folder_ / "packed" / "commit") << "abcdef0\n";
    tool("nvidia-smi", "echo 'Fake GPU, 9.0'");
    // As torch_bench.py speaks, but for libraries of Plimsoll's, which PyTorch must not get, and for memory that is too
    // little.
    tool("torch_python", R"(
if [ "$1" = -c ]; then echo; exit; fi
case "$*" in *transformers_bench.py*)
  echo '{"step_ms": [2, 3, 4], "losses": [5], "first_step_s": 1, "arena_bytes": 6, "predicted_ms": 3, "gpu_peak_bytes": 7}'; exit 0;;
esac
case "$LD_LIBRARY_PATH" in *packed*) echo 'PyTorch has our libraries' >&2; exit 1;; esac
case "$*" in *--memory*) echo 'Traceback' >&2; echo 'out of memory' >&2; exit 1;; esac
echo '{"torch": "fake"}'
while read -r word count; do
  [ "$word" = run ] || exit 0
  case "$*" in *nchw*) ms=900000;; *) ms=800000;; esac
  echo "{\"step_ms\": [$ms, 1, $((ms + 1))], \"loss\": 1, \"peak_bytes\": 7}"
done)");
  }
  void tool(const std::string& name, const std::string& script) const {
    const std::filesystem::path file = folder_ / "tools" / name;
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  // `then`: what the shell does beside it.
  Outcome check(const std::string& flags, const std::string& then = "") const {
    const std::string tools = (folder_ / "tools").string();
    const std::string command =
        "PATH=" + tools +
        ":$PATH PYTHONDONTWRITEBYTECODE=1 python3 " PLIMSOLL_SOURCE_DIR "/scripts/gpu_check --tiny --torch " + tools +
        "/torch_python --results " + folder_.string() + " " + flags + " > " + path("out") + " 2> " + path("err") + then;
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), slurp(path("out")), slurp(path("err"))};
  }
  nlohmann::json results() const { return nlohmann::json::parse(slurp(path("gpu-fake-gpu.json"))); }
};

TEST_F(GpuCheck, FindsNothingWrong) {
  const Outcome outcome = check("--minutes 20 --package " + path("packed") + " --packed " + path("packed"));
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  const nlohmann::json all = results();
  EXPECT_EQ(all.at("commit"), "abcdef0");
  EXPECT_TRUE(all.at("not_done").empty());
  for (const char* name : {"link",    "conformance", "gradients", "steps",     "exact",   "failure",     "speed",
                           "tight",   "slowdown",    "ranks",     "fill",      "twelve",  "heaps",       "workspace",
                           "largest", "tf32",        "compiled",  "bandwidth", "engines", "transformers"}) {
    int rows = 0;
    for (const auto& [item, record] : all.at("checks").at(name).items())
      rows += static_cast<int>(record.at("rows").size());
    EXPECT_GT(rows, 0) << name;
  }
  EXPECT_THAT(outcome.out, HasSubstr("test_tests_conformance"));
  EXPECT_THAT(outcome.out, HasSubstr("auto at 50% --peer"));
  EXPECT_THAT(outcome.out, HasSubstr("0.0 images/s (channels_last): Plimsoll "));  // the faster of its two
  EXPECT_THAT(outcome.out, HasSubstr("gpt2 8 tf32, PyTorch compiled"));
  EXPECT_THAT(outcome.out, HasSubstr("of the speed, PyTorch: out of memory"));
  EXPECT_THAT(outcome.out, HasSubstr("mlp:hidden="));
  EXPECT_THAT(outcome.out, HasSubstr("with their data"));
  EXPECT_THAT(outcome.out, HasSubstr("bandwidth    SgdUpdate"));
  EXPECT_THAT(outcome.out, HasSubstr("engines are faster for"));
}

TEST_F(GpuCheck, SaysWhatThereWasNoTimeForAndGoesOnWithIt) {
  const std::string tar = "tar -C " + path("packed") + " -chf " + path("packed.tar") + " .";
  ASSERT_EQ(std::system(tar.c_str()), 0);
  const std::string packed = " --only link,failure --packed " + path("packed.tar");
  const Outcome late = check("--minutes 0.01" + packed);
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.out, HasSubstr("not done: link, failure (--go-on "));
  std::filesystem::rename(path("gpu-fake-gpu.json"), path("earlier.json"));
  const Outcome rest = check("--minutes 20 --go-on " + path("earlier.json") + packed);
  EXPECT_EQ(rest.code, 0) << rest.out << rest.err;
  EXPECT_THAT(rest.out, HasSubstr("exit code 3: "));
  EXPECT_THAT(rest.out, HasSubstr("exit code 4: "));
  std::filesystem::rename(path("gpu-fake-gpu.json"), path("earlier.json"));
  const Outcome nothing = check("--minutes 0.01 --go-on " + path("earlier.json") + packed);
  EXPECT_EQ(nothing.code, 0) << nothing.out << nothing.err;
  EXPECT_THAT(nothing.out, HasSubstr("3 rows, 0 wrong"));
}

TEST_F(GpuCheck, CarriesWhatItMeasuredBesideItsResults) {
  const std::string one = " --only workspace --packed " + path("packed");
  EXPECT_EQ(check("--minutes 20" + one).code, 0);
  ASSERT_TRUE(std::filesystem::exists(path("gpu-fake-gpu.costs/costs.sqlite")));
  const auto bytes = std::filesystem::file_size(path("gpu-fake-gpu.costs/costs.sqlite"));
  std::filesystem::rename(path("gpu-fake-gpu.json"), path("earlier.json"));
  std::filesystem::rename(path("gpu-fake-gpu.costs"), path("earlier.costs"));
  EXPECT_EQ(check("--minutes 0.01 --go-on " + path("earlier.json") + one).code, 0);
  EXPECT_EQ(std::filesystem::file_size(path("gpu-fake-gpu.costs/costs.sqlite")), bytes);
  std::filesystem::remove_all(path("earlier.costs"));
  EXPECT_THAT(check("--minutes 0.01 --go-on " + path("earlier.json") + one).out,
              HasSubstr("times of kernels are measured again"));
}

// Its trainings hang, and so do processes that they have begun.
TEST_F(GpuCheck, EndsWithItsTableWhereAProcessHangsOrItIsStopped) {
  std::filesystem::remove(path("packed/plimsoll"));
  std::ofstream(path("packed/plimsoll")) << "#!/bin/sh\ncase \"$*\" in *train*) sleep 600 & wait ;; esac\nexec "
                                         << PLIMSOLL_BINARY_DIR << "/plimsoll \"$@\"\n";
  std::filesystem::permissions(path("packed/plimsoll"), std::filesystem::perms::owner_all);
  const std::string two = " --only steps,link --packed " + path("packed");
  const auto begun = std::chrono::steady_clock::now();
  const Outcome hangs = check("--minutes 0.3" + two);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(60));
  EXPECT_EQ(hangs.code, 1) << hangs.err;
  EXPECT_THAT(hangs.out, HasSubstr("to the host and back"));
  EXPECT_THAT(hangs.out, HasSubstr("1 rows, 0 wrong"));
  EXPECT_THAT(hangs.out, HasSubstr("not done: steps lenet"));
  const Outcome stopped = check("--minutes 20" + two, " & sleep 8; kill -TERM $!; wait $!");
  EXPECT_EQ(stopped.code, 1) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("not done: steps lenet"));
}

TEST_F(Cuda, KeepsALimitOnWorkspaces) {
  const std::string limited =
      "train lenet --data digits --batch 4 --device cuda:0 --evaluate-every 0 --json - --steps 3 --lr 0.01 --workspace ";
  const Outcome whole = run(train("--steps 3 --lr 0.01"));
  const Outcome kept = run(limited + "2KiB");
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_LE(kept.lines().front().at("largest_workspace_bytes").get<int64_t>(), 2048);
  EXPECT_NEAR(done(whole).at("loss").get<double>(), done(kept).at("loss").get<double>(), 1e-4);
  const Outcome none = run(limited + "0");
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr("raise --workspace to"));
}

// How often the program makes each call.
class CudaCalls : public Cuda {
 protected:
  void SetUp() override {
    Cuda::SetUp();
    know_rates();
  }
  std::map<std::string, int> counted(const std::string& arguments) {
    const std::string file = path("calls");
    std::filesystem::remove(file);
    ::setenv("PLIMSOLL_FAKE_CALLS", file.c_str(), 1);
    last_ = run(arguments);
    ::unsetenv("PLIMSOLL_FAKE_CALLS");
    std::map<std::string, int> calls;
    std::ifstream in(file);
    int count = 0;
    for (std::string name; in >> name >> count;) calls[name] += count;
    return calls;
  }
  Outcome last_;
};

TEST_F(CudaCalls, ATrainingTakesTheGpusMemoryOnceAndTellsHowMuchItTook) {
  const auto calls = counted(train("--steps 3"));
  EXPECT_EQ(calls.at("cudaMalloc"), 1);
  EXPECT_EQ(calls.at("cudaHostRegister"), 1);  // the batches
  const nlohmann::json end = done(last_);
  ASSERT_FALSE(end.is_null()) << last_.err;
  const int64_t arena = last_.lines().front().at("arena_bytes").get<int64_t>();
  EXPECT_EQ(end.at("device_bytes").get<int64_t>(), arena + 4096);
  const Outcome cpu =
      run("train lenet --data digits --batch 4 --steps 1 --costs estimated --evaluate-every 0 --json -");
  EXPECT_TRUE(done(cpu).at("device_bytes").is_null());
}

TEST_F(CudaCalls, HostMemoryWhoseRateIsKnownIsTakenOnce) {
  const auto calls = counted(train("--steps 3 --memory 180KiB --host-memory 64MiB"));
  EXPECT_EQ(calls.at("cudaMalloc"), 1);
  EXPECT_EQ(calls.at("cudaHostRegister"), 2);  // the tier, and the batches
  EXPECT_FALSE(done(last_).is_null()) << last_.err;
}

// Where planning begins again, and where a step is run to be timed.
TEST_F(CudaCalls, HostMemoryIsPinnedOnceHoweverOftenTheStepIsRunBeforeTheFirst) {
  const std::string tight = " --steps 3 --memory 180KiB --host-memory 64MiB";
  ::setenv("PLIMSOLL_FAKE_STATUS", "cudnnConvolutionForward/implicit_precomp_gemm:3000", 1);
  const auto refused = counted(train(tight));
  EXPECT_THAT(last_.err, HasSubstr("planned again without it"));
  EXPECT_EQ(refused.at("cudaHostRegister"), 2) << "the tier, and the batches";
  ::unsetenv("PLIMSOLL_FAKE_STATUS");
  const auto timed = counted("train lenet --data digits --batch 4 --device cuda:0 --evaluate-every 0 --json -" + tight);
  EXPECT_FALSE(done(last_).is_null()) << last_.err;
  EXPECT_EQ(timed.at("cudaHostRegister"), 2);
}

TEST_F(CudaCalls, AnyCallThatFailsLeavesTheLastCheckpointGood) {
  const std::string file = path("c.safetensors");
  const auto calls = counted(train("--steps 1"));
  const nlohmann::json whole = done(run(train("--steps 4")));
  ASSERT_FALSE(whole.is_null());
  for (const char* call : {"cudaLaunchKernel", "cudnnConvolutionForward", "cudnnConvolutionBackwardData",
                           "cublasLtMatmul", "cudaEventRecord"}) {
    SCOPED_TRACE(call);
    std::filesystem::remove(file);
    ::setenv("PLIMSOLL_FAKE_FAIL", (std::string(call) + ":" + std::to_string(calls.at(call) + 1)).c_str(),
             1);  // in the second step
    const Outcome failed = run(train("--steps 4 --checkpoint-every 1 --checkpoint " + file));
    ::unsetenv("PLIMSOLL_FAKE_FAIL");
    EXPECT_EQ(failed.code, 4) << failed.err;
    EXPECT_THAT(failed.err, HasSubstr(call));
    const nlohmann::json resumed = done(run("train --json - --costs estimated --evaluate-every 0 --resume " + file));
    ASSERT_FALSE(resumed.is_null()) << slurp(path("err"));
    EXPECT_EQ(resumed.at("steps").get<int64_t>(), 3);
    EXPECT_EQ(resumed.at("weights_sha256"), whole.at("weights_sha256"));
  }
}

TEST_F(Cuda, AnAlgorithmThatIsRefusedIsNamedAndThePlanMadeWithoutIt) {
  ::setenv("PLIMSOLL_FAKE_REFUSE", "implicit_precomp_gemm", 1);
  const Outcome trained = run(
      "train lenet --data digits --batch 4 --device cuda:0 --exact --costs estimated --steps 3 --epochs 1 --json -");
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_THAT(
      trained.err,
      HasSubstr("kernel 'cudnn:implicit_precomp_gemm' was offered, but does not run: cuDNN does not run the algorithm "
                "implicit_precomp_gemm after all: cudnnConvolutionForward: status 3000"));
  EXPECT_THAT(trained.err, HasSubstr("planned again without it"));
  EXPECT_FALSE(done(trained).is_null());
}

TEST_F(Cuda, ACudnnThatIsBrokenIsNamedAndEndsThePlanning) {
  ::setenv("PLIMSOLL_FAKE_STATUS", "cudnnGetConvolution:3009,cudnnBackend:3009", 1);
  for (const std::string& words : {train("--steps 1"), std::string("plan lenet --batch 4 --device cuda:0")}) {
    const Outcome broken = run(words);
    EXPECT_EQ(broken.code, 4) << broken.err;
    EXPECT_THAT(broken.err,
                HasSubstr("cuDNN runs no convolution on this GPU, not even a plain one: cudnnBackendFinalize"));
    EXPECT_THAT(broken.err, HasSubstr("status 3009"));
  }
}

// Planned where cuDNN's fixed functions take no convolution, and trained where they do.
TEST_F(CudaCalls, APlanByEnginesOfCudnnIsSavedAndRunByTheirNames) {
  const std::string plan = path("plan.json");
  ::setenv("PLIMSOLL_FAKE_STATUS", "cudnnGetConvolution:3000", 1);
  const Outcome planned = run("plan lenet --data digits --batch 4 --device cuda:0 --costs estimated --save " + plan);
  ::unsetenv("PLIMSOLL_FAKE_STATUS");
  ASSERT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(slurp(plan), HasSubstr("cudnn:eng70_k2=4"));
  const std::string trained = "train --data digits --steps 5 --lr 0.01 --evaluate-every 0 --json - --plan " + plan;
  const auto calls = counted(trained);
  const nlohmann::json end = done(last_);
  ASSERT_FALSE(end.is_null()) << last_.err;
  EXPECT_TRUE(end.at("captured").get<bool>());
  EXPECT_EQ(calls.at("cudnnBackendExecute"), 3 * 5) << "a rehearsal, a step, and one that is captured";
  EXPECT_EQ(calls.count("cudnnConvolutionForward"), 0u);
  ::setenv("PLIMSOLL_FAKE_STATUS", "cudnnBackendExecute/eng70_k2=4:3000", 1);
  EXPECT_THAT(run(trained).err,
              HasSubstr("kernel 'cudnn:eng70_k2=4' was offered, but does not run: cuDNN does not run the algorithm "
                        "eng70_k2=4 after all: cudnnBackendExecute: status 3000"));
}

TEST_F(Cuda, WhereCudnnRunsAConvolutionByNoAlgorithmTheUserIsTold) {
  ::setenv("PLIMSOLL_FAKE_STATUS", "cudnnConvolutionForward:5003,cudnnBackendExecute:5003", 1);
  const Outcome slow = run(train("--steps 1"));
  EXPECT_EQ(slow.code, 0) << slow.err;
  EXPECT_THAT(slow.err,
              HasSubstr("runs by 'own:direct', which is slow: the device's library has no other kernel for it"));
  EXPECT_THAT(run(train("--steps 1")).err, HasSubstr("cudnnConvolutionForward: status 5003"));
}

// A resumed training repeats its kernels, so there is no plan without the one that is refused.
TEST_F(Cuda, AnAlgorithmThatIsRefusedToAResumedTrainingEndsItAsTheDevicesFailure) {
  const std::string file = path("c.safetensors");
  ASSERT_EQ(run(train("--steps 2 --checkpoint " + file)).code, 0);
  ::setenv("PLIMSOLL_FAKE_REFUSE", "implicit_precomp_gemm", 1);
  const Outcome resumed = run("train --steps 4 --costs estimated --evaluate-every 0 --resume " + file);
  EXPECT_EQ(resumed.code, 4) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("op '"));
  EXPECT_THAT(resumed.err, HasSubstr("kernel 'cudnn:implicit_precomp_gemm' was offered, but does not run"));
}

TEST_F(Cuda, TheDefaultBudgetLeavesWhatKernelsTookWhenTheyWereMeasured) {
  ::setenv("PLIMSOLL_FAKE_LOADS", "64", 1);  // MiB, of each algorithm
  const std::string measured =
      "train lenet --data digits --batch 4 --device cuda:0 --evaluate-every 0 --steps 2 --json - ";
  const nlohmann::json own = done(run(measured));
  ASSERT_FALSE(own.is_null()) << slurp(path("err"));
  EXPECT_LE(own.at("budget_bytes").get<int64_t>(), (int64_t{2} << 30) - (int64_t{64} << 20));
  const nlohmann::json given = done(run(measured + "--memory 2GiB"));
  EXPECT_EQ(given.at("budget_bytes").get<int64_t>(), int64_t{2} << 30);
}

TEST_F(Cuda, BatchesThatCannotBePinnedAreCopiedAllTheSame) {
  know_rates();
  const nlohmann::json pinned = done(run(train("--steps 3")));
  ::setenv("PLIMSOLL_FAKE_FAIL", "cudaHostRegister:1", 1);
  const Outcome slower = run(train("--steps 3"));
  EXPECT_EQ(slower.code, 0) << slower.err;
  EXPECT_THAT(slower.err, HasSubstr("from memory that is not pinned: cudaHostRegister"));
  EXPECT_EQ(done(slower).at("weights_sha256"), pinned.at("weights_sha256"));
}

TEST_F(Cuda, APlanHasTheBudgetThatTrainingHas) {
  const int64_t free = int64_t{2} << 30;
  EXPECT_EQ(run("plan lenet --batch 4 --device cuda:0 --json -").lines().front().at("budget_bytes").get<int64_t>(),
            free);
  EXPECT_THAT(run("compare lenet --batch 4 --device cuda:0 --policies auto").out, HasSubstr("budget 2.00 GiB"));
  EXPECT_TRUE(run("plan lenet --batch 4 --json -").lines().front().at("budget_bytes").is_null());
}

TEST_F(Cuda, HeapsRefusesWhatItWouldNotHeed) {
  for (const char* flag : {"--policy auto", "--host-memory 1GiB", "--spill /tmp", "--peer cuda:1"}) {
    const Outcome outcome = run(std::string("heaps lenet --batch 2 --device cuda:0 ") + flag);
    EXPECT_EQ(outcome.code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr(std::string(flag).substr(0, std::string(flag).find(' ')) +
                                       ": heaps are compared for policy liveness"));
  }
}

TEST_F(Cuda, KeepsALimitOnTheSumOfWorkspaces) {
  const std::string limited =
      "train lenet --data digits --batch 4 --device cuda:0 --evaluate-every 0 --json - --steps 2 --costs estimated --workspace-total ";
  const Outcome whole = run(limited + "1GiB");
  ASSERT_EQ(whole.code, 0) << whole.err;
  const int64_t taken = whole.lines().front().at("workspaces_bytes").get<int64_t>();
  const Outcome kept = run(limited + std::to_string(taken * 2 / 3));
  ASSERT_EQ(kept.code, 0) << kept.err;
  EXPECT_LE(kept.lines().front().at("workspaces_bytes").get<int64_t>(), taken * 2 / 3);
  const Outcome none = run(limited + "0");
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr("raise --workspace-total to"));
}

TEST_F(Cuda, AGpuThatIsTooOldIsListedWithTheReason) {
  ::setenv("PLIMSOLL_FAKE_CAPABILITY", "7.0", 1);
  EXPECT_THAT(run("devices").out, HasSubstr("compute capability 7.0 is below 7.5"));
  const Outcome none = run(train("--steps 1"));
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("device 'cuda:0' is not there: compute capability 7.0 is below 7.5"));
  ::setenv("PLIMSOLL_FAKE_CAPABILITY", "7.5", 1);
  EXPECT_EQ(run("devices").out.find("below 7.5"), std::string::npos);
}

// The module that was built with this program loads, where there is a GPU and where there is none.
TEST_F(Cuda, TheModuleIsFoundBesideTheProgramAndIsOfItsVersion) {
  ::unsetenv("PLIMSOLL_CUDA_MODULE");
  namespace fs = std::filesystem;
  const fs::path alone = folder_ / "alone" / "bin";
  fs::create_directories(alone);
  fs::copy_file(PLIMSOLL_BINARY_DIR "/plimsoll", alone / "plimsoll");
  const std::string command = alone.string() + "/plimsoll devices > " + path("out") + " 2> " + path("err");
  EXPECT_EQ(std::system(command.c_str()), 0) << slurp(path("err"));
  EXPECT_THAT(slurp(path("out")), HasSubstr("libplimsoll_cuda.so is not beside the program"));
#ifdef PLIMSOLL_CUDA_BUILT
  const std::string listed = run("devices").out;
  for (const char* wrong : {"is not beside the program", "does not load", "another version"}) {
    EXPECT_EQ(listed.find(wrong), std::string::npos) << listed;
  }
#endif
}

}  // namespace
