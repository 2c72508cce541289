// replay TARGET FILE_OR_DIRECTORY...: runs a fuzz target over the named files and the files of the
// named directories.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "property.hpp"

namespace {

namespace fs = std::filesystem;

void replay(spc::fuzz::Target target, const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  // Copy to a buffer of exactly this size, so that the sanitizer detects a read past its end.
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  std::fprintf(stderr, "%s\n", file.c_str());  // the last printed name is the crashing input
  target(bytes.data(), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  const spc::fuzz::Target target = argc > 1 ? spc::fuzz::targets()[argv[1]] : nullptr;
  if (target == nullptr) return 2;
  unsigned count = 0;
  for (const fs::path& given : std::vector<fs::path>(argv + 2, argv + argc)) {
    if (!fs::is_directory(given)) {
      replay(target, given);
      ++count;
      continue;
    }
    for (const auto& entry : fs::recursive_directory_iterator(given)) {
      if (!entry.is_regular_file()) continue;
      replay(target, entry.path());
      ++count;
    }
  }
  std::printf("%u inputs\n", count);
  return count > 0 ? 0 : 1;
}
