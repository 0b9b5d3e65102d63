// Small valid inputs of every fuzz target, to begin from.
#pragma once

#include <spng.h>
#include <stdlib.h>
#include <turbojpeg.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/cost_graph_seed.h"
#include "fuzz/targets.h"
#include "plimsoll/checkpoint.h"
#include "train/safetensors.h"

namespace plimsoll::fuzz {

inline std::string digits_seed() {
  std::string text;
  for (int row = 0; row < 10; ++row) {
    for (int i = 0; i < 64; ++i) text += std::to_string((row * 5 + i * 3) % 17) + ",";
    text += std::to_string(row) + "\n";
  }
  return text;
}

inline std::string gzip_seed() {
  const std::string text = digits_seed();
  std::string out(text.size() + 100, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline std::vector<unsigned char> pattern(int count) {
  std::vector<unsigned char> bytes(count);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i * 31 >> 3);
  return bytes;
}

inline std::string jpeg_seed(int flags, int subsampling) {
  tjhandle encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  tjCompress2(encoder, pattern(40 * 33 * 3).data(), 40, 0, 33, TJPF_RGB, &bytes, &size, subsampling, 80, flags);
  std::string file(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(encoder);
  return file;
}

inline std::string png_seed(spng_color_type color_type, int bytes_per_pixel) {
  spng_ctx* encoder = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(encoder, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = 9;
  header.height = 7;
  header.bit_depth = 8;
  header.color_type = static_cast<uint8_t>(color_type);
  spng_set_ihdr(encoder, &header);
  const std::vector<unsigned char> pixels = pattern(9 * 7 * bytes_per_pixel);
  spng_encode_image(encoder, pixels.data(), pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE);
  size_t size = 0;
  int error = 0;
  void* bytes = spng_get_png_buffer(encoder, &size, &error);
  std::string file(static_cast<char*>(bytes), size);
  free(bytes);
  spng_ctx_free(encoder);
  return file;
}

inline std::string safetensors_seed() {
  TrainingState state{.step = 7, .model = "lenet", .data = "digits"};
  state.kernels = {{"conv1/forward", "jit:avx2"}};
  std::vector<SafetensorsEntry> entries{{.name = "conv1.weight", .dtype = "F32", .shape = {2, 3, 1}},
                                        {.name = "count", .dtype = "I64", .shape = {}},
                                        {.name = "mask", .dtype = "U8", .shape = {5}}};
  return make_safetensors_header(entries, {{"format", "pt"}, {"plimsoll", to_json(state)}}) +
         std::string(24 + 8 + 5, 'd');
}

// Weights of every type, by names of ours and of others.
inline std::string weights_seed() {
  std::vector<SafetensorsEntry> entries;
  const char* const dtypes[] = {"F32", "F16", "BF16", "F64"};
  for (const State& state : weights_network().graph.states) {
    const Tensor& t = weights_network().graph.tensor(state.before);
    entries.push_back({.name = (entries.empty() ? "module." : "") + t.name,
                       .dtype = dtypes[entries.size() % std::size(dtypes)],
                       .shape = t.shape});
  }
  const std::string header = make_safetensors_header(entries, {{"format", "pt"}});
  return header + std::string(static_cast<size_t>(entries.back().end), 'w');
}

inline std::string saved_plan_seed() {
  Program program;
  program.network.graph = example_graph();
  program.plan = check_plan(program.network.graph, example_plan(program.network.graph));
  return to_json(
      {.model = "resnet20", .input = {.channels = 3, .height = 32, .width = 32, .classes = 10}, .optimizer = {}},
      program);
}

inline std::string train_options_seed() {
  TrainOptions options{
      .model = "resnet20", .data = "synthetic:100", .batch = 8, .memory = 5_MiB, .steps = 100, .image_size = 32};
  options.schedule = {
      .name = "step", .lr = 0.1, .min_lr = 1e-5, .decay_epochs = 3, .warmup_epochs = 2, .warmup_lr = 0.01};
  Program program;
  program.network.graph = example_graph();
  program.kernels.resize(program.network.graph.op_count(), {"reference", {}});
  Plan plan = example_plan(program.network.graph);
  plan.budget = 5_MiB;
  program.plan = check_plan(program.network.graph, std::move(plan));
  TrainingState state = state_to_save(options, program, "key");
  state.step = 37;
  state.epoch = 3;
  state.batch_in_epoch = 7;
  return to_json(state);
}

// A network file with all that it may have.
inline std::string network_seed() {
  return R"({"format": "plimsoll network", "version": 1, "name": "small", "batch": 4, "training": {
 "tensors": [
  {"name": "x", "shape": ["batch", 1, 4, 4], "dtype": "f32", "role": "input"},
  {"name": "y", "shape": ["batch"], "dtype": "i32", "role": "input"},
  {"name": "w", "shape": [2, 1, 3, 3], "dtype": "f32", "role": "parameter", "init": {"kind": "normal", "mean": 0, "scale": 0.1}},
  {"name": "v", "shape": [3, 32], "dtype": "f32", "role": "parameter"}],
 "ops": [
  {"type": "ConvForward", "name": "conv", "layer": "conv", "inputs": ["x", "w"], "outputs": ["c"],
   "attributes": {"stride": [1, 1], "padding": [1, 1, 1, 1]}, "shapes": [["batch", 2, 4, 4]]},
  {"type": "Reshape", "name": "flat", "inputs": ["c"], "outputs": ["f"], "attributes": {"shape": ["batch", 32]}},
  {"type": "FullyConnectedForward", "name": "fc", "inputs": ["f", "v"], "outputs": ["s"], "source": "model.py:12"},
  {"type": "SoftmaxCrossEntropyForward", "name": "loss", "inputs": ["s", "y"], "outputs": ["loss", "p", "correct"],
   "attributes": {"label_smoothing": 0.1}}],
 "objectives": [{"loss": "loss", "parameters": ["w"]}], "frozen": ["v"],
 "data": "x", "labels": "y", "correct": "correct", "outputs": ["s"]}})";
}

// As versions up to 2 had it: settings as texts, and the chosen cores among them.
inline std::string old_training_state_seed() {
  nlohmann::json old = nlohmann::json::parse(train_options_seed());
  old["format_version"] = 2;
  old["settings"] = {{"image_size", "32"},      {"augment", "1"},          {"decay_rate", "0.5"},
                     {"inter_op_chosen", "2"},  {"strategies", "1,3"},     {"host_memory", "1048576"},
                     {"threads of conv1", "1"}, {"affinity of conv1", "1"}};
  return old.dump();
}

inline std::string costs_seed() {
  DeviceInfo device;
  device.key = "cpu";
  CostTable table;
  table.put({"ConvForward(8x3x4x4 f32)->(8x2x4x4 f32)", "jit:avx512_core", 0},
            {.source = Cost::Source::measured, .time_ms = 1.5, .spread_ms = 0.25, .runs = 5, .workspace = 4_KiB});
  table.put({"ConvForward(8x3x4x4 f32)->(8x2x4x4 f32)", "gemm:jit@4*2", 2},
            {.source = Cost::Source::in_step, .time_ms = 2, .spread_ms = 0, .runs = 1});
  return costs_to_json(table, device);
}

inline std::vector<std::string> seeds(std::string_view target) {
  using namespace std::string_literals;
  if (target == "costs") return {costs_seed()};
  if (target == "configuration")
    return {"jit:avx512_core@abcd", "a@16*3+b@8", "a@1*4096", "jit_wino_4x3:avx512_core@abcd@16*3+gemm:jit@acdb@1"};
  if (target == "size") return {"1.5GiB", "512 MB", "64k", "1000", "1e9", "9223372036854775807", " 3.25tb"};
  if (target == "digits") return {digits_seed()};
  if (target == "gzip") return {gzip_seed()};
  if (target == "idx") {
    return {"\0\0\x08\x03\0\0\0\x02\0\0\0\x03\0\0\0\x04"s + std::string(24, 'p'),
            "\0\0\x08\x01\0\0\0\x05"s + "labels"s.substr(1)};
  }
  if (target == "cifar") return {"\7"s + std::string(3072, 'p'), "\3\x2a"s + std::string(3072, 'p')};
  if (target == "tokens") return {"\1\3\0"s + "a\0b\0c\0"s, "\2\xff\1"s + "a\1\0\0b\0\0\0"s, "\0\3\1"s + "some text"};
  if (target == "image") {
    return {jpeg_seed(0, TJSAMP_420), jpeg_seed(TJFLAG_PROGRESSIVE, TJSAMP_444), jpeg_seed(0, TJSAMP_GRAY),
            png_seed(SPNG_COLOR_TYPE_TRUECOLOR, 3), png_seed(SPNG_COLOR_TYPE_GRAYSCALE_ALPHA, 2)};
  }
  if (target == "safetensors") return {safetensors_seed()};
  if (target == "weights") return {weights_seed()};
  if (target == "training_state") {
    TrainingState fed{
        .step = 4, .model = "lenet", .optimizer = {.freeze = {"conv1.*"}, .clip_grad_norm = 2, .accumulate = 4}};
    fed.input = {.channels = 1,
                 .height = 28,
                 .width = 28,
                 .classes = 2,
                 .mean = {0.5},
                 .stddev = {0.25},
                 .class_names = {"cat", "dog"}};
    return {to_json(TrainingState{.step = 3, .model = "resnet50"}), to_json(fed), old_training_state_seed()};
  }
  if (target == "graph") return {to_json(example_graph())};
  if (target == "plan") {
    const Graph graph = example_graph();
    return {to_json(example_plan(graph), graph), to_json(example_plan_with_moves(graph), graph)};
  }
  if (target == "expression") {
    return {"mul(add(x0,x1),2.5)", "t0=sigmoid(x0);t1=mul(t0,sub(1,t0));where(and(gt(x1,-inf),not(eq(x2,nan))),t1,x3)",
            "gelu_tanh(hardtanh(elu(x0,1e-3),neg(x31),pow(x2,3)))", "exp(exp(exp(exp(exp(exp(x0))))))"};
  }
  if (target == "saved_plan") return {saved_plan_seed()};
  if (target == "network") return {network_seed()};
  if (target == "cost_graph") {
    return {
        cost_graph_seed(),
        R"({"about": "a diamond", "sources": [128, 0], "nodes": [{"name": "a", "ms": 1, "out": [64, 192], "in": [["source", 0], ["source", 1]]},
{"name": "b", "ms": 2.5, "out": [640], "in": [[0, 0]]}, {"name": "c", "ms": 2, "out": [640], "in": [[0, 1], ["source", 0]]},
{"name": "d", "ms": 1, "out": [64], "in": [[1, 0], [2, 0], [0, 1]]}], "keep": [[3, 0]], "peak_bytes": 1664})",
        R"({"directed": true, "multigraph": false, "graph": {}, "nodes": [{"id": 0, "cost_cpu": 1, "cost_ram": 640},
{"id": "b", "cost_cpu": 2.5, "cost_ram": 128.0}, {"id": 2, "cost_cpu": 1, "cost_ram": 64}],
"links": [{"source": 0, "target": "b"}, {"source": "b", "target": 2}, {"source": 0, "target": 2}]})"};
  }
  if (target == "model_name") {
    return {"resnet:6-32-788-6", "densenet:depth=40,growth=12", "mlp:256-128",
            "vgg16:dropout=0.5", "dcgan:z=100,width=64",        "lenet"};
  }
  if (target == "data_spec")
    return {"digits", "mnist:/data/mnist", "cifar10:.",   "images:a:b", "synthetic:1000",
            "text",   "bytes:a.txt",       "tokens:a.u32"};
  if (target == "placement") {
    return {"id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n",
            "size,id,upper,lower,alignment,offset\r\n100,x,9223372036854775807,0,64,0\r\n7,y,5,4,64,128\r\n"};
  }
  if (target == "convolutions") {
    return {
        "width,height,channels,batch,filters,kernel_width,kernel_height,pad_width,pad_height,stride_width,stride_height\n"
        "56,56,64,32,64,3,3,1,1,1,1\n700,161,1,4,32,20,5,0,0,2,2\n",
        "batch, kernel_height,kernel_width,filters,channels,height,width\r\n8,3,5,16,4,20,30\r\n"};
  }
  if (target == "train_options") return {train_options_seed()};
  return {};
}

}  // namespace plimsoll::fuzz
