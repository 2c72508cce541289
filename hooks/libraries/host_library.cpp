#include "hooks/libraries/host_library.hpp"

#include <elf.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "base/format.hpp"
#include "base/unique_fd.hpp"
#include "hooks/loader/elf.hpp"
#include "hooks/text.hpp"

namespace spc {
namespace {

constexpr char kHint[] = "check the lists of libraries in config.toml";

}  // namespace

std::vector<unsigned> library_version(std::string_view file_name) {
  std::vector<unsigned> version;
  const auto extension = file_name.rfind(".so.");
  if (extension == std::string_view::npos) return version;
  for (std::string_view rest = file_name.substr(extension + 4); !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    const auto number = decimal(part);
    if (!number) break;
    version.push_back(*number);
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
  }
  return version;
}

std::string linker_name(std::string_view soname) {
  const auto extension = soname.rfind(".so");
  return std::string(extension == std::string_view::npos ? soname
                                                         : soname.substr(0, extension + 3));
}

std::string version_text(const std::vector<unsigned>& version) {
  std::string text;
  for (const unsigned part : version)
    text.append(text.empty() ? "" : ".").append(std::to_string(part));
  return text;
}

AbiLevel abi_level_of(std::string_view word) {
  if (word == "major") return AbiLevel::major;
  return word == "strict" ? AbiLevel::strict : AbiLevel::full;
}

AbiFit abi_fit(const std::vector<unsigned>& host, const std::vector<unsigned>& image,
               AbiLevel level) {
  if (host.empty() || image.empty())
    return level == AbiLevel::strict && host != image ? AbiFit::no : AbiFit::fits;
  if (host[0] != image[0]) return AbiFit::no;
  if (level == AbiLevel::strict) return host == image ? AbiFit::fits : AbiFit::no;
  if (host.size() < 2 || image.size() < 2 || host[1] >= image[1]) return AbiFit::fits;
  return level == AbiLevel::major ? AbiFit::older : AbiFit::no;
}

std::string HostLibrary::file_name() const { return source.substr(source.rfind('/') + 1); }

Result<HostLibrary> HostLibrary::read(const std::string& host_root, const std::string& path,
                                      std::string_view prefix) {
  const std::string at = host_root + path;
  char resolved[PATH_MAX];
  if (::realpath(at.c_str(), resolved) == nullptr)
    return Error::from_errno(errno, formatted("find library {} of the node", in_quotes(path)))
        .hint(kHint);
  const UniqueFd file(::open(resolved, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file)
    return Error::from_errno(errno, formatted("open library {} of the node", in_quotes(path)))
        .hint(kHint);
  auto elf =
      SPC_TRY_DURING(formatted("library {} of the node", in_quotes(path)), read_elf(file.get()));
  if (elf.type != ET_DYN || !elf.interpreter.empty())
    return Error(ErrorKind::invalid, in_quotes(path) + " of the node is not a shared library")
        .hint(kHint);
  HostLibrary library;
  library.source = resolved;
  char root[PATH_MAX];
  if (!host_root.empty() && ::realpath(host_root.c_str(), root) != nullptr &&
      library.source.starts_with(root)) {
    library.source.erase(0, std::string_view(root).size());
  }
  library.named = !elf.soname.empty();
  library.soname = library.named ? std::move(elf.soname) : path.substr(path.rfind('/') + 1);
  library.machine = elf.machine;
  library.searches = !elf.rpath.empty() || !elf.runpath.empty();
  library.needed = std::move(elf.needed);
  library.version_needs = std::move(elf.version_needs);
  library.version_definitions = std::move(elf.version_definitions);
  if (!prefix.empty()) library.functions = exported_functions(file.get(), prefix);
  return library;
}

std::string HostLibrary::serialize() const {
  std::string text = formatted("source {}\nsoname {}\nmachine {}\n", source, soname, machine);
  if (dependency) text += "dependency yes\n";
  if (fallback) text += "fallback yes\n";
  if (searches) text += "searches yes\n";
  for (const std::string& name : needed) text += formatted("needs {}\n", name);
  for (const auto& [file, versions] : version_needs) {
    text += formatted("of {}\n", file);
    for (const std::string& version : versions) text += formatted("version {}\n", version);
  }
  for (const std::string& version : version_definitions) text += formatted("defines {}\n", version);
  for (const std::string& function : functions) text += formatted("exports {}\n", function);
  return text;
}

HostLibrary HostLibrary::parse(std::string_view text) {
  HostLibrary library;
  std::string file;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view key = line.substr(0, line.find(' '));
    const std::string value(line.substr(std::min(key.size() + 1, line.size())));
    if (key == "source") library.source = value;
    if (key == "soname") library.soname = value;
    if (key == "machine") library.machine = static_cast<std::uint16_t>(decimal(value).value_or(0));
    if (key == "dependency") library.dependency = true;
    if (key == "fallback") library.fallback = true;
    if (key == "searches") library.searches = true;
    if (key == "needs") library.needed.push_back(value);
    if (key == "of") file = value;
    if (key == "version") library.version_needs[file].insert(value);
    if (key == "defines") library.version_definitions.insert(value);
    if (key == "exports") library.functions.insert(value);
  }
  return library;
}

std::string clash_of(const std::vector<HostLibrary>& libraries) {
  for (auto one = libraries.begin(); one != libraries.end(); ++one) {
    const auto other = std::find_if(libraries.begin(), one, [&](const HostLibrary& before) {
      return before.soname == one->soname && before.machine == one->machine &&
             before.fallback == one->fallback && before.source != one->source;
    });
    if (other != one)
      return formatted(
          "{} and {} are both {}, and a program loads one only (hint: name one of them)",
          in_quotes(other->source), in_quotes(one->source), one->soname);
  }
  return {};
}

}  // namespace spc
