// The papers' tables made again: what a paper prints beside what comes out here, with the reason where they differ.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

struct Finding {
  std::string table, row, quantity;
  std::optional<double> paper, ours;
  std::string unit;
  std::string note;  // why they differ, or what the number is of
};

struct PaperTable {
  std::string_view name;         // what `plimsoll reproduce` takes: "table1"
  std::string_view description;  // paper and section
  std::vector<Finding> (*make)();
};
std::vector<PaperTable> paper_tables();
// Throws Error(invalid_input) with the nearest name; "all": every table, one after the other.
std::vector<Finding> reproduce(std::string_view table);

// make(i) for every i below `count`, side by side where cores are free; in the order of i.
std::vector<Finding> findings_of(size_t count, const std::function<std::vector<Finding>(size_t)>& make);

// A table's functions stand in the file of their paper.
std::vector<Finding> superneurons_figure10();  // superneurons.cpp
std::vector<Finding> superneurons_table1();
std::vector<Finding> superneurons_table3();
std::vector<Finding> superneurons_layers();
std::vector<Finding> superneurons_better();
std::vector<Finding> superneurons_table4();  // going_wider.cpp
std::vector<Finding> superneurons_table5();
std::vector<Finding> superneurons_table4_by_auto();
std::vector<Finding> superneurons_table5_by_auto();
std::vector<Finding> dymem_steps();  // others.cpp
std::vector<Finding> ucudnn_workspaces();
std::vector<Finding> concurrency_table1();  // concurrency.cpp
std::vector<Finding> concurrency_table2();
std::vector<Finding> concurrency_table3();
std::vector<Finding> concurrency_table5();
std::vector<Finding> concurrency_figure3();
std::vector<Finding> concurrency_16_cores();
std::vector<Finding> ucudnn_division();

}  // namespace plimsoll
