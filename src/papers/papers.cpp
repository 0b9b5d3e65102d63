#include "papers/papers.h"

#include <iterator>

#include "base/names.h"
#include "base/parallel.h"
#include "plimsoll/error.h"

namespace plimsoll {

std::vector<PaperTable> paper_tables() {
  return {
      {"figure10", "SuperNeurons, section 4.1.1 and figure 10: AlexNet at batch 200 step by step",
       superneurons_figure10},
      {"table1", "SuperNeurons, table 1: recomputations and peaks by strategy", superneurons_table1},
      {"table3", "SuperNeurons, table 3: traffic with and without the tensor cache", superneurons_table3},
      {"table4", "SuperNeurons, table 4: the deepest ResNet at batch 16 on a K40c", superneurons_table4},
      {"table5", "SuperNeurons, table 5: the largest batch on a K40c", superneurons_table5},
      {"table4-auto", "the same depth by auto; takes minutes", superneurons_table4_by_auto},
      {"table5-auto", "the same batches by auto; takes many minutes", superneurons_table5_by_auto},
      {"layers", "SuperNeurons, sections 1 and 2: layers of its networks", superneurons_layers},
      {"better", "what SuperNeurons leaves on the table, under its own layer model", superneurons_better},
      {"dymem-steps", "Dymem: steps of ResNet-32", dymem_steps},
      {"ucudnn-workspaces", "mu-cuDNN: workspaces of a convolution by FFT", ucudnn_workspaces},
      {"concurrency-table1", "concurrency control, table I: uniform settings on a simulated Xeon Phi",
       concurrency_table1},
      {"concurrency-table2", "concurrency control, table II and figure 1: the best threads of convolutions",
       concurrency_table2},
      {"concurrency-table3", "concurrency control, table III: two convolutions side by side", concurrency_table3},
      {"concurrency-table5", "concurrency control, table V: times between the thread counts tried", concurrency_table5},
      {"concurrency-figure3", "concurrency control, figures 3 and 4: the four strategies on a simulated Xeon Phi",
       concurrency_figure3},
      {"concurrency-16-cores", "concurrency control: the four strategies on 16 simulated cores", concurrency_16_cores},
      {"ucudnn-division", "mu-cuDNN, section IV-D: one workspace total for all convolutions of a network",
       ucudnn_division},
  };
}

std::vector<Finding> findings_of(size_t count, const std::function<std::vector<Finding>(size_t)>& make) {
  std::vector<std::vector<Finding>> made(count);
  for_each_in_parallel(count, [&](size_t i) { made[i] = make(i); });
  std::vector<Finding> all;
  for (std::vector<Finding>& findings : made) {
    all.insert(all.end(), std::make_move_iterator(findings.begin()), std::make_move_iterator(findings.end()));
  }
  return all;
}

std::vector<Finding> reproduce(std::string_view table) {
  const std::vector<PaperTable> tables = paper_tables();
  if (table == "all") return findings_of(tables.size(), [&](size_t i) { return tables[i].make(); });
  std::vector<std::string> known{"all"};
  for (const PaperTable& one : tables) {
    if (table == one.name) return one.make();
    known.emplace_back(one.name);
  }
  throw Error(ErrorCode::invalid_input, unknown_name("table", table, known));
}

}  // namespace plimsoll
