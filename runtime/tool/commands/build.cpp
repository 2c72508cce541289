#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/file.hpp"
#include "base/format.hpp"
#include "base/process/supervised.hpp"
#include "base/text.hpp"
#include "tool/build/build_step.hpp"
#include "tool/command.hpp"
#include "tool/containers/detached.hpp"
#include "tool/containers/own_containers.hpp"
#include "tool/images/obtain.hpp"
#include "tool/surroundings/terminal.hpp"

namespace spc::tool {

namespace {

constexpr std::size_t kMaxRecipe = 16 << 20;

Result<std::string> read_recipe(const std::string& path) {
  UniqueFd opened;
  if (path != "-") opened = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (path != "-" && !opened) {
    const int err = errno;
    return Error::from_errno(err, "open recipe " + in_quotes(path))
        .hint("-f FILE names another recipe than CONTEXT/Dockerfile");
  }
  std::string text;
  char buffer[1 << 16];
  const int file = path == "-" ? STDIN_FILENO : opened.get();
  for (;;) {
    const ssize_t got = ::read(file, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Error::from_errno(errno, "read recipe " + in_quotes(path));
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
    if (text.size() > kMaxRecipe)
      return Error(ErrorKind::invalid, formatted("recipe {}: is too large", in_quotes(path)));
  }
}

/// Returns the recipe's path: that of --file, otherwise the context's Dockerfile or Containerfile.
std::string recipe_of(const Arguments& arguments, const std::string& context) {
  if (const std::string file = arguments.value("file"); !file.empty()) return file;
  for (const char* name : {"/Containerfile", "/Dockerfile"}) {
    if (::access((context + name).c_str(), F_OK) == 0) return context + name;
  }
  return context + "/Dockerfile";
}

/// Adds the lines NAME=VALUE of a file.
Result<void> read_arguments(const std::string& path, Variables& values) {
  const std::string text = SPC_TRY(read_recipe(path));
  unsigned number = 0;
  for (const std::string_view line : split(text, '\n')) {
    ++number;
    const std::string_view pair = trimmed(line);
    if (pair.empty() || pair.front() == '#') continue;
    const auto equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0)
      return Error(ErrorKind::invalid,
                   formatted("--build-arg-file: {}:{}: is not NAME=VALUE", path, number));
    values[std::string(pair.substr(0, equals))] = pair.substr(equals + 1);
  }
  return {};
}

Result<BuildOrder> order_of(const Arguments& arguments) {
  BuildOrder order;
  const std::string& given = arguments.words[0];
  struct stat status {};
  if (given.find("://") != std::string::npos)
    return Error(ErrorKind::invalid, formatted("context {}: is a URL", in_quotes(given)))
        .hint("fetch it first, then build the directory");
  std::string recipe = given;
  if (given != "-") {
    if (::stat(given.c_str(), &status) != 0)
      return Error::from_errno(errno, "open context " + in_quotes(given));
    if (S_ISDIR(status.st_mode)) {
      order.context = SPC_TRY(absolute_path(given));
      recipe = recipe_of(arguments, given);
    }
  }
  order.file = recipe;
  order.text = SPC_TRY(read_recipe(order.file));
  order.is_definition = is_definition(order.text);
  if (order.is_definition) order.context = "/";
  if (order.context.empty() && given != "-")
    return Error(ErrorKind::invalid, formatted("context {}: is not a directory", in_quotes(given)))
        .hint(formatted("scontainer build -f {} .", given));
  order.target = arguments.value("target");
  for (const std::string& path : arguments.values("build-arg-file"))
    SPC_TRY(read_arguments(path, order.arguments));
  for (const std::string& text : arguments.values("build-arg")) {
    const auto equals = text.find('=');
    const char* const own = equals == std::string::npos ? std::getenv(text.c_str()) : nullptr;
    if (equals != std::string::npos)
      order.arguments[text.substr(0, equals)] = text.substr(equals + 1);
    else if (own != nullptr)
      order.arguments[text] = own;
  }
  for (const std::string& text : arguments.values("secret")) {
    std::string id;
    std::string source;
    for (const std::string_view part : split(text, ',')) {
      if (part.starts_with("id=")) id = part.substr(3);
      if (part.starts_with("src=")) source = part.substr(4);
      if (part.starts_with("source=")) source = part.substr(7);
    }
    if (id.empty() || source.empty())
      return Error(ErrorKind::invalid,
                   formatted("--secret: {} is not id=NAME,src=FILE", in_quotes(text)));
    order.secrets[id] = SPC_TRY(absolute_path(source));
  }
  order.cache_from = arguments.values("cache-from");
  order.platform = arguments.value("platform");
  order.no_cache = arguments.has("no-cache");
  order.debug_shell = arguments.has("debug-shell");
  order.quiet = arguments.has("quiet");
  if (arguments.has("pull")) order.pull = PullPolicy::always;
  return order;
}

Result<int> build_here(const Arguments& arguments, const Places& places) {
  const auto config = SPC_TRY(read_config(places.config, ::geteuid(), places.containers));
  std::string name;
  if (const std::string tag = arguments.value("tag"); !tag.empty()) {
    const auto reference =
        SPC_TRY_DURING("--tag", ImageReference::parse(tag, config.default_registry));
    if (reference.digest) return Error(ErrorKind::invalid, "--tag: must be NAME[:TAG]");
    name = reference.canonical();
  }
  const BuildOrder order = SPC_TRY(order_of(arguments));
  const Digest image = SPC_TRY_DURING("build", build_image(places, config, order, name));
  if (const std::string output = arguments.value("output"); !output.empty()) {
    Arguments exported;
    exported.words = {name.empty() ? image.str() : name, output};
    if (arguments.has("force")) exported.options["force"] = {};
    if (const int status = SPC_TRY(run_export(exported)); status != 0) return status;
  }
  if (arguments.has("push")) {
    if (name.empty())
      return Error(ErrorKind::invalid, "--push: the image has no name").hint("-t REGISTRY/NAME");
    Arguments pushed;
    pushed.words = {name, name};
    pushed.options["quiet"] = {};
    return run_push(pushed);  // prints the digest
  }
  std::puts(image.str().c_str());
  return 0;
}

}  // namespace

/// The build is a child, so that all processes of a step are ended with it, however it ends.
Result<int> run_build(const Arguments& arguments) {
  const auto places = SPC_TRY(Places::find());
  if (!places.own_store) {
    return Error(ErrorKind::refused, "build: an image is built in the store of an ordinary user")
        .hint("run it as a non-root user");
  }
  const auto build = [&] {
    const auto built = build_here(arguments, places);
    if (!built) report_error(built.error().message());
    std::fflush(stdout);
    return built ? *built : 1;
  };
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const auto status = supervise(build, [](pid_t) {});
  end_descendants(0);
  BuildCache::remove_unfinished(places);
  return status;
}

}  // namespace spc::tool
