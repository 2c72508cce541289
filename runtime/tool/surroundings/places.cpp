#include "tool/surroundings/places.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <vector>

#include "base/format.hpp"
#include "base/process/child.hpp"
#include "base/text.hpp"
#include "protocol/store_layout.hpp"

namespace spc::tool {

namespace {

/// Returns an XDG variable. Only absolute paths are valid (XDG Base Directory Specification).
std::string absolute_variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] == '/' ? value : "";
}

std::string home_directory() {
  if (auto home = absolute_variable("HOME"); !home.empty()) return home;
  std::vector<char> buffer(16 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr)
    return {};
  return found->pw_dir != nullptr && found->pw_dir[0] == '/' ? found->pw_dir : "";
}

std::string under(const std::string& variable, const std::string& home, const char* default_place) {
  if (!variable.empty()) return variable + "/spank-container";
  return home.empty() ? std::string() : home + default_place + "/spank-container";
}

}  // namespace

Result<Places> Places::find() {
  Places places;
  places.home = home_directory();
  places.config = SPC_CONFIG_FILE;
  if (::geteuid() == 0) {
    places.own_store = false;
    places.store = SPC_STORE_DIR;
    places.running = SPC_RUN_DIR "/running";
    return places;
  }
  places.store = under(absolute_variable("XDG_DATA_HOME"), places.home, "/.local/share");
  if (places.store.empty()) {
    return Error(ErrorKind::not_found, "locate the image store: the user has no home directory")
        .hint("set XDG_DATA_HOME");
  }
  places.running = places.store + "/running";
  const std::string own = under(absolute_variable("XDG_CONFIG_HOME"), places.home, "/.config");
  const std::string config = own + "/config.toml";
  if (!own.empty()) places.containers = own.substr(0, own.rfind('/')) + "/containers";
  if (::access(config.c_str(), F_OK) == 0) places.config = config;
  return places;
}

Result<std::string> absolute_path(const std::string& path) {
  if (path.starts_with('/')) return path;
  std::array<char, PATH_MAX> here{};
  if (::getcwd(here.data(), here.size()) == nullptr)
    return Error::from_errno(errno, "get the work directory");
  return std::string(here.data()) + "/" + path;
}

Result<void> make_directories(const std::string& path) {
  for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      struct stat status {};
      const int err = errno;
      if (::stat(part.c_str(), &status) != 0)
        return Error::from_errno(err, "make directory " + in_quotes(part));
    }
    if (slash == std::string::npos) return {};
  }
}

Result<UniqueFd> make_own_store(const Places& places) {
  for (const char* part : {store_layout::kLayers, store_layout::kRecords, store_layout::kNames,
                           store_layout::kGrants, store_layout::kImages, "running", "workspace"}) {
    SPC_TRY_DURING("set up the user's image store", make_directories(places.store + "/" + part));
  }
  const std::string locks = places.store + "/locks";
  const UniqueFd made(::open(locks.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!made)
    return Error::from_errno(errno, "set up the user's image store: create " + in_quotes(locks));
  return open_store(places.store);
}

Result<UniqueFd> open_store(const std::string& path) {
  UniqueFd store(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (store) return store;
  const int err = errno;
  if (err == ENOENT)
    return Error(ErrorKind::not_found, formatted("no image store {} yet", in_quotes(path)));
  return Error::from_errno(err, "open the image store " + in_quotes(path));
}

// --- commands on top of scontainer ---

namespace {

/// Returns the path of scontainer, which is installed in the directory of this program.
std::string path_of_scontainer() {
  std::array<char, PATH_MAX> self{};
  const ssize_t size = ::readlink("/proc/self/exe", self.data(), self.size() - 1);
  const std::string path(self.data(), size < 0 ? 0U : static_cast<std::size_t>(size));
  return path.substr(0, path.rfind('/') + 1) + "scontainer";
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> list;
  for (const auto& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

std::vector<std::string> command(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"scontainer"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

Error become(const std::vector<std::string>& arguments, char* const* environment) {
  const std::string path = path_of_scontainer();
  const auto words = command(arguments);
  ::execve(path.c_str(), pointers(words).data(), environment);
  return Error::from_errno(errno, "execute " + in_quotes(path));
}

}  // namespace

Error become_scontainer(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment) {
  return become(arguments, pointers(environment).data());
}

Error become_scontainer(const std::vector<std::string>& arguments) {
  return become(arguments, environ);
}

Result<std::string> output_of_scontainer(const std::vector<std::string>& arguments) {
  constexpr std::size_t kMost = 1 << 20;
  auto [reading, writing] = SPC_TRY(make_pipe());
  Child child = SPC_TRY(Child::start({.path = path_of_scontainer(),
                                      .arguments = command(arguments),
                                      .descriptors = {{STDIN_FILENO, STDIN_FILENO},
                                                      {writing.get(), STDOUT_FILENO},
                                                      {STDERR_FILENO, STDERR_FILENO}}}));
  writing.reset();
  const std::string text = read_pipe(reading.get(), kMost);
  if (!child.wait().success()) return Error(ErrorKind::unavailable, "");
  return std::string(trimmed(text));
}

}  // namespace spc::tool
