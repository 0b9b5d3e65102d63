// write_seeds DIR: writes the small valid inputs of every target to DIR/<target>/.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "fuzz/seeds.h"
#include "fuzz/targets.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: write_seeds DIR\n"), 2;
  for (const auto& target : plimsoll::fuzz::kTargets) {
    const std::filesystem::path folder = std::filesystem::path(argv[1]) / target.name;
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const std::string& seed : plimsoll::fuzz::seeds(target.name)) {
      std::ofstream(folder / std::to_string(number++), std::ios::binary) << seed;
    }
  }
  return 0;
}
