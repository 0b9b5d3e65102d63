#include "papers/papers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

double ours(const std::vector<Finding>& findings, std::string_view row, std::string_view quantity) {
  for (const Finding& f : findings) {
    if (f.row == row && f.quantity == quantity) return f.ours.value_or(std::nan(""));
  }
  ADD_FAILURE() << "no row " << row << ", " << quantity;
  return std::nan("");
}

bool differs(const Finding& f) {
  return f.paper && (!f.ours || std::abs(*f.paper - *f.ours) > 0.005 * std::abs(*f.paper));
}

// Each difference has a reason: not what is said of the rows without one as well, and more than that it is simulated.
void expect_differences_are_explained(const std::vector<Finding>& rows) {
  std::set<std::pair<std::string, std::string>> said_of_equals;  // quantity, note
  for (const Finding& f : rows) {
    if (f.paper && !differs(f)) said_of_equals.emplace(f.quantity, f.note);
  }
  for (const Finding& f : rows) {
    if (!differs(f)) continue;
    SCOPED_TRACE(f.table + ", " + f.row + ", " + f.quantity + ": " + f.note);
    EXPECT_FALSE(said_of_equals.contains({f.quantity, f.note})) << "the same is said where nothing differs";
    EXPECT_GE(std::count(f.note.begin(), f.note.end(), ' '), 4) << "no reason";
  }
}

TEST(Papers, EveryDifferenceIsExplained) {
  for (std::string_view table :
       {"figure10", "table1", "table3", "layers", "better", "dymem-steps", "ucudnn-workspaces", "ucudnn-division",
        "concurrency-table1", "concurrency-table2", "concurrency-table3", "concurrency-table5"}) {
    const auto rows = reproduce(table);
    expect_differences_are_explained(rows);
    for (const Finding& f : rows) {
      EXPECT_EQ(f.table, table);
      EXPECT_TRUE(f.ours) << f.row << ", " << f.quantity;
    }
  }
}

TEST(Papers, Figure10ComesOutToTheLastDigit) {
  const auto rows = reproduce("figure10");
  EXPECT_EQ(ours(rows, "baseline", "data tensors"), 36);
  EXPECT_NEAR(ours(rows, "baseline", "peak"), 2189.437, 0.0005);
  EXPECT_NEAR(ours(rows, "liveness", "peak"), 1489.355, 0.0005);
  EXPECT_EQ(ours(rows, "liveness", "step of the peak"), 32);
  EXPECT_EQ(ours(rows, "liveness", "tensors alive at the peak"), 17);
  EXPECT_NEAR(ours(rows, "offload", "peak"), 1132.056, 0.0005);
  EXPECT_EQ(ours(rows, "offload", "step of the peak"), 39);
  EXPECT_EQ(ours(rows, "offload", "tensors alive at the peak"), 9);
  EXPECT_NEAR(ours(rows, "cost-aware recomputation", "peak"), 886.230, 0.0005);
  EXPECT_EQ(ours(rows, "cost-aware recomputation", "step of the peak"), 44);
}

TEST(Papers, Table1ComesOut) {
  const auto rows = reproduce("table1");
  const struct {
    const char* row;
    double counts[3];
    double peaks[3];
  } expected[] = {{"AlexNet", {14, 23, 17}, {993.018, 886.230, 886.230}},
                  {"ResNet50", {84, 118, 85}, {455.125, 406.125, 406.125}},
                  {"ResNet101", {169, 237, 170}, {455.125, 406.125, 406.125}},
                  {"ResNet152", {254, 356, 255}, {455.125, 406.125, 406.125}}};
  const std::string strategies[] = {"speed", "memory", "cost-aware"};
  for (const auto& e : expected) {
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(ours(rows, e.row, strategies[i] + ": recomputations"), e.counts[i]) << e.row;
      EXPECT_NEAR(ours(rows, e.row, strategies[i] + ": peak"), e.peaks[i], 0.0005) << e.row;
    }
    EXPECT_NEAR(ours(rows, e.row, "cost-aware: arena"), e.peaks[2], 0.0005) << e.row;
  }
}

TEST(Papers, Table3sRowsComeFromPlans) {
  const auto rows = reproduce("table3");
  for (const Finding& f : rows) {
    if (f.quantity != "traffic without the cache" || !f.paper) continue;
    EXPECT_NEAR(*f.ours, *f.paper, 0.005) << f.row;
  }
  for (const int batch : {256, 384, 512, 640, 896, 1024}) {
    const std::string row = "batch " + std::to_string(batch);
    EXPECT_DOUBLE_EQ(ours(rows, row, "copied out without the cache"), 4 * 650'080e-9 * batch) << "the CONV outputs";
    EXPECT_EQ(ours(rows, row, "traffic with the cache"), 0) << row;
  }
  EXPECT_GT(ours(rows, "batch 1792", "traffic with the cache"), 0) << "it does not fit";
}

TEST(Papers, LessMemoryThanSuperNeuronsUnderItsOwnLayerModel) {
  const auto rows = reproduce("better");
  EXPECT_LE(ours(rows, "AlexNet, batch 200", "peak"), 771.5);
  EXPECT_LE(ours(rows, "AlexNet, batch 200", "recomputations"), 14);
  for (const char* row : {"AlexNet, batch 200", "ResNet50, batch 32", "ResNet101, batch 32", "ResNet152, batch 32"}) {
    EXPECT_DOUBLE_EQ(ours(rows, row, "arena"), ours(rows, row, "peak"));
    EXPECT_LE(ours(rows, row, "peak"), row[0] == 'R' ? 392.0 : 771.5);
    EXPECT_LE(ours(rows, std::string(row) + ", auto", "arena"), row[0] == 'R' ? 392.0 : 771.5) << row;
  }
  EXPECT_LE(ours(rows, "AlexNet, batch 200, ReLU in place", "peak"), 664.7);
  EXPECT_LE(ours(rows, "AlexNet, batch 200, ReLU in place", "arena"), 664.7);
  EXPECT_LE(ours(rows, "AlexNet, batch 200, auto", "recomputations"), 14);
  EXPECT_LE(ours(rows, "AlexNet, batch 200, least, auto", "arena"), 664.7);
  EXPECT_DOUBLE_EQ(ours(rows, "InceptionV4, batch 128", "arena"), ours(rows, "InceptionV4, batch 128", "peak"));
}

TEST(Papers, ConcurrencysTableVIsWhatArithmeticAllows) {
  const auto rows = reproduce("concurrency-table5");
  EXPECT_NEAR(ours(rows, "T(p) = 1/p", "accuracy, interval 2"), 98.51, 0.0051);
  EXPECT_NEAR(ours(rows, "T(p) = 1/p", "accuracy, interval 4"), 95.08, 0.0051);
  EXPECT_NEAR(ours(rows, "T(p) = 1/p", "accuracy, interval 8"), 82.17, 0.0051);
  EXPECT_NEAR(ours(rows, "T(p) = 1/p", "accuracy, interval 16"), 32.50, 0.0051);
}

TEST(Papers, ConcurrencysTableIIHasThePapersOptima) {
  int optima = 0;
  for (const Finding& f : reproduce("concurrency-table2")) {
    SCOPED_TRACE(f.row + ", " + f.quantity);
    const double tolerance = f.quantity == "best threads" ? 0 : f.quantity == "best threads, interval 4" ? 3 : 0.005;
    if (f.quantity == "lost by interval 4") {
      EXPECT_LT(*f.ours, 2);
    } else if (f.quantity != "lost with 68 threads") {
      EXPECT_NEAR(*f.ours, *f.paper, tolerance);
      ++optima;
    }
  }
  EXPECT_EQ(optima, 27);
}

// Simulated: what the paper gains on average, and no worse than the best uniform setting by more than 2 %.
TEST(Papers, ConcurrencyGainsAThirdOnASimulatedXeonPhi) {
  const auto rows = reproduce("concurrency-figure3");
  EXPECT_GE(ours(rows, "average", "auto"), 1.33);
  for (const char* network : {"ResNet-50", "DCGAN", "Inception-v3"}) {
    EXPECT_GE(ours(rows, network, "auto, over the best uniform"), 0.98) << network;
    EXPECT_GE(ours(rows, network, "Strategies 1 and 2"), 1) << network;
  }
}

TEST(Papers, ConcurrencyLosesToNoUniformSettingOn16SimulatedCores) {
  const auto rows = reproduce("concurrency-16-cores");
  for (const char* network : {"ResNet-50", "DCGAN", "Inception-v3"}) {
    EXPECT_GE(ours(rows, network, "auto, over the best uniform"), 0.98) << network;
  }
}

TEST(Papers, AnUnknownTableIsAnsweredWithTheNearest) {
  try {
    reproduce("tabel1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean 'table1'"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace plimsoll
