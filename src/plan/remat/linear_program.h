// Lower bounds of linear programs: the least of cost . z where rows of z are at least so much, and each z is between 0 and
// its limit. Any prices y >= 0 of the rows prove a bound,
//
//     y . least + sum over z of min(0, (cost - y . row entries of z)) x limit
//
// since what the rows ask for is paid, and each z does its best for itself. Good prices come from the primal-dual hybrid
// gradient method, as PDLP has it (Applegate et al. 2021): averages, restarts, steps by the size of rows and columns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace plimsoll {

class LinearProgram {
 public:
  int32_t add_column(double cost, double limit);
  struct Entry {
    int32_t column;
    double by;
  };
  void add_row(std::span<const Entry> entries, double least);

  size_t rows() const { return least_.size(); }
  size_t columns() const { return cost_.size(); }
  size_t entries() const { return by_.size(); }

  // So many more steps; the best bound so far. Ends when the bound is at least `enough`. Rows may be added between.
  double improve(int steps, double enough);
  // Of a column, near the solution after improve().
  double value(int32_t column) const;

  // Holds a column between `low` and `high`, from here on.
  void set_limits(int32_t column, double low, double high);
  // Where the method stands, to go on from there with other limits; the best bound is forgotten then.
  struct State {
    std::vector<float> prices, values;
  };
  State state() const;
  void go_on_from(const State& state);

 private:
  void prepare();
  double bound_of(const std::vector<double>& y);

  std::vector<double> cost_, low_, high_, least_;
  std::vector<int32_t> row_begin_{0}, column_;
  std::vector<double> by_;
  std::vector<int32_t> column_begin_, row_of_;  // the same by column
  std::vector<double> column_by_;
  std::vector<double> step_z_, step_y_;
  std::vector<double> z_, y_, sum_z_, sum_y_, from_z_, from_y_, extra_;
  int summed_ = 0;  // steps in the sums
  double weight_ = 1;
  bool prepared_ = false;
  double best_ = -1e300;
};

}  // namespace plimsoll
