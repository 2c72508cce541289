#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/digest.hpp"

namespace spc {

inline Digest digest_of(unsigned char byte) {
  Digest digest;
  digest.bytes.fill(byte);
  return digest;
}

inline std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return stream.good() || stream.eof() ? text.str() : "cannot be read";
}

inline void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

inline std::string proc_file(pid_t pid, const char* name) {
  return contents("/proc/" + std::to_string(pid) + "/" + name);
}

inline std::string status_line(pid_t pid, const std::string& key) {
  std::istringstream text(proc_file(pid, "status"));
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with(key + ":")) return line.substr(key.size() + 2);
  }
  return {};
}

}  // namespace spc
