#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/cost_file.h"

namespace plimsoll {
namespace {

using ::testing::HasSubstr;

DeviceInfo device(std::string key) {
  DeviceInfo info;
  info.key = std::move(key);
  return info;
}

CostTable some_costs() {
  CostTable table({.gflops = 200, .memory_gb_per_s = 12.5, .launch_us = 3});
  table.put({"ConvForward(8x3)", "jit", 0},
            {.source = Cost::Source::measured, .time_ms = 1.25, .spread_ms = 0.01, .runs = 7, .workspace = 64_KiB});
  table.put({"ConvForward(8x3)", "jit", 1},
            {.source = Cost::Source::measured, .time_ms = 2.5, .spread_ms = 0, .runs = 3, .workspace = 0_B});
  table.put({"ConvForward(8x3)", "jit@4*2", 0},
            {.source = Cost::Source::in_step, .time_ms = 1e-9, .spread_ms = 0.5, .runs = 1});
  table.put({"Relu", "own", 0}, {.source = Cost::Source::estimated, .time_ms = 9});
  return table;
}

std::string error_of(const std::string& text, const std::string& key, ErrorCode code) {
  try {
    costs_from_json(text, "costs.json", device(key));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(CostFile, SaysThatRatesAreOfABusyMachine) {
  const std::string quiet = costs_to_json(some_costs(), device("here"));
  EXPECT_EQ(quiet.find("\"busy\""), std::string::npos);
  EXPECT_FALSE(costs_from_json(quiet, "costs.json", device("here")).rates().busy);
  MachineRates rates = some_costs().rates();
  rates.busy = true;
  const std::string text = costs_to_json(CostTable(rates), device("here"));
  EXPECT_TRUE(costs_from_json(text, "costs.json", device("here")).rates().busy);
  EXPECT_EQ(costs_to_json(costs_from_json(text, "costs.json", device("here")), device("here")), text);
}

TEST(CostFile, ReadsBackWhatWasMeasured) {
  const std::string text = costs_to_json(some_costs(), device("here"));
  const CostTable back = costs_from_json(text, "costs.json", device("here"));
  EXPECT_EQ(costs_to_json(back, device("here")), text);
  EXPECT_EQ(back.entries().size(), 2u);
  EXPECT_EQ(back.in_step_entries().size(), 1u);
  EXPECT_EQ(back.find({"ConvForward(8x3)", "jit", 0})->workspace, 64_KiB);
  EXPECT_EQ(back.rates().gflops, 200);
}

TEST(CostFile, TellsThreadsThatShareNoCacheFromThoseThatDo) {
  CostTable table;
  table.put({"Relu(8)", "own", 2, false}, {.source = Cost::Source::measured, .time_ms = 1});
  table.put({"Relu(8)", "own", 2, true}, {.source = Cost::Source::measured, .time_ms = 3});
  const std::string text = costs_to_json(table, device("here"));
  // Earlier versions wrote "apart".
  for (const std::string& file : {text, replaced(text, "\"spread\": true", "\"apart\": true")}) {
    const CostTable back = costs_from_json(file, "costs.json", device("here"));
    EXPECT_EQ(back.find({"Relu(8)", "own", 2, false})->time_ms, 1);
    EXPECT_EQ(back.find({"Relu(8)", "own", 2, true})->time_ms, 3);
  }
}

TEST(CostFile, OfAnotherDeviceIsRefusedByName) {
  const std::string text = costs_to_json(some_costs(), device("there"));
  EXPECT_EQ(error_of(text, "here", ErrorCode::invalid_input),
            "costs.json: these are costs of another device ('there'); this is 'here'");
}

TEST(CostFile, ErrorsSayThePlaceAndWhatWasExpected) {
  const std::string text = costs_to_json(some_costs(), device("here"));
  const ErrorCode corrupt = ErrorCode::corrupt_file;
  EXPECT_THAT(error_of(text.substr(0, text.size() / 2), "here", corrupt), HasSubstr("costs.json: "));
  EXPECT_THAT(error_of(replaced(text, "1.25", "-1.25"), "here", corrupt),
              HasSubstr("entries[0].time_ms: a time above 0 and at most 1e+09 ms was expected"));
  EXPECT_THAT(error_of(replaced(text, "\"jit\"", "\"jit@4\""), "here", corrupt),
              HasSubstr("entries[0].kernel: 'jit@4' names no kernel"));
  EXPECT_THAT(error_of(replaced(text, "\"in_step\"", "\"dreamt\""), "here", corrupt),
              HasSubstr("\"measured\" or \"in_step\" was expected"));
  EXPECT_THAT(error_of(replaced(text, "plimsoll costs", "other costs"), "here", corrupt), HasSubstr("format"));
  EXPECT_THAT(error_of("[]", "here", corrupt), HasSubstr("costs.json: "));
}

TEST(CostFile, ImpossibleCostsAreRefusedByFileAndEntry) {
  const std::string text = costs_to_json(some_costs(), device("here"));
  auto refused = [&](const std::string& from, const std::string& to) {
    return error_of(replaced(text, from, to), "here", ErrorCode::corrupt_file);
  };
  for (const char* time : {"0", "0.0", "1e308", "-0.0", "1e300"}) {
    EXPECT_THAT(refused("1.25", time), HasSubstr("costs.json: entries[0].time_ms: a time above 0")) << time;
  }
  EXPECT_THAT(refused("0.01", "1e200"), HasSubstr("costs.json: entries[0].spread_ms: a number from 0 to"));
  EXPECT_THAT(refused("65536", "-1"), HasSubstr("costs.json: entries[0].workspace"));
  EXPECT_THAT(refused("65536", "4611686018427387904"), HasSubstr("costs.json: entries[0].workspace"));
  EXPECT_THAT(refused("\"ConvForward(8x3)\"", "\"\""), HasSubstr("costs.json: entries[0].signature"));
  EXPECT_THAT(refused("\"jit\"", "\"\""), HasSubstr("costs.json: entries[0].kernel"));
  EXPECT_THAT(refused("\"threads\": 1,", ""),
              HasSubstr("costs.json: entries[1]: kernel 'jit' of 'ConvForward(8x3)' has two costs of one kind"));
  EXPECT_THAT(refused("200.0", "1e300"), HasSubstr("costs.json: rates.gflops"));
}

TEST(CostFile, MergingAddsWhatIsLackingAndLeavesWhatWasMeasuredHere) {
  CostTable here;
  here.put({"ConvForward(8x3)", "jit", 0}, {.source = Cost::Source::measured, .time_ms = 7});
  EXPECT_EQ(merge_costs(some_costs(), here), 2);  // estimates are made anew
  EXPECT_EQ(here.find({"ConvForward(8x3)", "jit", 0})->time_ms, 7);
  EXPECT_EQ(here.find({"ConvForward(8x3)", "jit", 1})->time_ms, 2.5);
  EXPECT_EQ(here.in_step_entries().size(), 1u);
  EXPECT_EQ(merge_costs(some_costs(), here), 0);
}

TEST(CostFile, TellsTimesOfABusyMachineAndTakesAQuietOneInTheirPlace) {
  const CostKey alone{"ConvForward(8x3)", "jit", 0};
  auto table = [&](double ms, bool busy) {
    CostTable one;
    one.put(alone, {.source = Cost::Source::measured, .time_ms = ms, .busy = busy});
    one.put(alone, {.source = Cost::Source::in_step, .time_ms = ms, .busy = busy});
    return one;
  };
  const CostTable back = costs_from_json(costs_to_json(table(9, true), device("here")), "costs.json", device("here"));
  EXPECT_TRUE(back.find(alone)->busy);
  EXPECT_TRUE(back.find_in_step(alone)->busy);
  CostTable here = back;
  EXPECT_EQ(merge_costs(table(8, true), here), 0);
  EXPECT_EQ(merge_costs(table(2, false), here), 2);
  EXPECT_EQ(here.find(alone)->time_ms, 2);
  EXPECT_FALSE(here.find_in_step(alone)->busy);
  EXPECT_EQ(merge_costs(table(1, true), here), 0);
}

TEST(CostFile, TellsWhatSharingCoresCosts) {
  CostTable table = some_costs();
  table.put({"Add(8)->(8)", "own", 3, true}, {.source = Cost::Source::in_step, .time_ms = 0.5, .runs = 2});
  table.put({"Add(8)->(8)", "own", 3}, {.source = Cost::Source::in_step, .time_ms = 0.75, .runs = 2});
  table.add_conflict("b", "a");
  const CostTable read = costs_from_json(costs_to_json(table, device("here")), "costs.json", device("here"));
  EXPECT_EQ(read.find_in_step({"Add(8)->(8)", "own", 3, true})->time_ms, 0.5);
  EXPECT_EQ(read.find_in_step({"Add(8)->(8)", "own", 3})->time_ms, 0.75);
  EXPECT_EQ(read.conflicts(), (std::set<CostTable::OpPair>{{"a", "b"}}));
  CostTable here;
  merge_costs(read, here);
  EXPECT_EQ(here.conflicts(), read.conflicts());
}

}  // namespace
}  // namespace plimsoll
