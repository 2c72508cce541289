#include "config.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <toml.hpp>
#include <vector>

#include "base/file.hpp"
#include "base/unique_fd.hpp"
#include "image/reference.hpp"

namespace spc {
namespace {

// Written spc::quoted here: <iomanip> has a std::quoted for std::string, which argument-dependent lookup prefers.

constexpr ConfigKey kKeys[] = {
    {"default_registry", "text", "docker.io", "the registry of names that do not begin with one"},
    {"writable", "yes or no", "true", "whether containers can be written to unless the job says otherwise"},
    {"mount_home", "yes or no", "false", "whether the user's home is mounted unless the job says otherwise"},
    {"upper_size", "size", "50%", "how much a container can write: a percentage of the memory, or bytes with K, M, G, T"},
    {"squashfs", "auto, kernel, fuse", "auto",
     "who reads the layers: the kernel, a process of the user, or that where the kernel cannot"},
    {"pull", "newer, missing, always, never", "newer", "when the registry is asked about an image that is already there"},
    {"public_ttl", "seconds", "3600", "how long an image fetched without credentials is public without asking again"},
    {"private_ttl", "seconds", "3600", "how long a user may start a private image after its registry last let him have it"},
    {"tag_ttl", "seconds", "0", "how long a tag is not asked for again"},
    {"max_parallel_layers", "number", "0", "layers converted at the same time; 0: one a core, at most 4"},
    {"max_image_bytes", "bytes", "0", "largest compressed image; 0: no limit"},
    {"stall_timeout", "seconds", "30", "how long a registry may send less than 1 KiB a second"},
    {"https_proxy", "URL", "", "proxy for registries and what they redirect to by https"},
    {"http_proxy", "URL", "", "proxy for those spoken to by plain HTTP"},
    {"no_proxy", "list of hosts", "", "hosts and domains spoken to without a proxy"},
    {"allowed_registries", "list of hosts", "", "`HOST[:PORT]` or `*.DOMAIN` of registries that may be used; empty: all"},
};

constexpr ConfigKey kRegistryKeys[] = {
    {"insecure", "yes or no", "false", "spoken to by plain HTTP"},
    {"ca", "file", "", "certificates (PEM) trusted for it besides the system's"},
    {"blocked", "yes or no", "false", "nobody may use it"},
    {"mirrors", "list of hosts", "", "`HOST[:PORT][/PREFIX]` asked before it, in this order, without credentials"},
    {"mirror_tags", "yes or no", "false", "mirrors may say what a tag stands for"},
    {"login_servers", "list of hosts", "", "`HOST[:PORT]` on other domains that may see its users' credentials"},
    {"require_digest", "yes or no", "false", "only names with a digest may be used"},
};

constexpr ConfigKey kStoreKeys[] = {
    {"max_size", "size", "0", "how much all images may take: bytes with K, M, G, T; 0: no limit"},
    {"high_watermark", "percent", "90", "images are evicted when the file system would be fuller than this"},
    {"low_watermark", "percent", "80", "until it is as empty as this"},
    {"max_imports_per_user", "number", "4", "images that a user may have on their way to this node at a time; others wait"},
};

int line_of(const toml::value& value) {
#if defined(TOML11_VERSION_MAJOR) && TOML11_VERSION_MAJOR >= 4
  return static_cast<int>(value.location().first_line_number());
#else
  return static_cast<int>(value.location().line());
#endif
}

/// Levenshtein distance, for "did you mean".
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

/// Reads the keys of one table into variables. The first thing that is wrong is kept, with its line.
class TableReader {
 public:
  TableReader(const std::string& file, const toml::value& table, std::string prefix, std::span<const ConfigKey> keys)
      : file_(file), table_(table), prefix_(std::move(prefix)), keys_(keys) {}

  Result<void> check_keys(std::initializer_list<std::string_view> tables = {}) const {
    for (const auto& [name, value] : table_.as_table()) {
      if (std::find(tables.begin(), tables.end(), name) != tables.end()) continue;
      const auto same = [&wanted = name](const ConfigKey& key) { return wanted == key.name; };
      if (std::any_of(keys_.begin(), keys_.end(), same)) continue;
      std::string_view nearest = tables.size() > 0 ? *tables.begin() : std::string_view();
      for (const ConfigKey& key : keys_) {
        if (nearest.empty() || distance(name, key.name) < distance(name, nearest)) nearest = key.name;
      }
      Error error = refuse(value, name, "unknown key");
      if (distance(name, nearest) <= 3) return std::move(error).hint("did you mean " + spc::quoted(nearest) + "?");
      return std::move(error).hint("the keys are described in CONFIG.md");
    }
    return {};
  }

  Result<void> read(const char* name, bool& into) const {
    const toml::value* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_boolean()) return refuse(*value, name, "needs true or false");
    into = value->as_boolean();
    return {};
  }

  /// A whole number from 0 to `most`.
  template <typename Number>
  Result<void> read(const char* name, Number& into, std::int64_t most) const {
    const toml::value* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_integer()) return refuse(*value, name, "needs a whole number");
    const auto number = value->as_integer();
    if (number < 0 || number > most) return refuse(*value, name, "needs a number from 0 to " + std::to_string(most));
    into = static_cast<Number>(number);
    return {};
  }

  /// Text that `check` accepts; what it does not is answered with `rule`.
  Result<void> read(const char* name, std::string& into, const std::function<bool(const std::string&)>& check,
                    const char* rule) const {
    const toml::value* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string()) return refuse(*value, name, "needs text in quotes");
    const std::string text = toml::get<std::string>(*value);
    if (!check(text)) return refuse(*value, name, spc::quoted(text) + " is not allowed: " + rule);
    into = text;
    return {};
  }

  /// A list of texts that `check` accepts.
  Result<void> read(const char* name, std::vector<std::string>& into, const std::function<bool(const std::string&)>& check,
                    const char* rule) const {
    const toml::value* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_array()) return refuse(*value, name, "needs a list: [\"...\", \"...\"]");
    for (const toml::value& element : value->as_array()) {
      if (!element.is_string()) return refuse(element, name, "needs text in quotes");
      const std::string text = toml::get<std::string>(element);
      if (!check(text)) return refuse(element, name, spc::quoted(text) + " is not allowed: " + rule);
      into.push_back(text);
    }
    return {};
  }

 private:
  const toml::value* find(const char* name) const {
    const auto found = table_.as_table().find(name);
    return found == table_.as_table().end() ? nullptr : &found->second;
  }

  Error refuse(const toml::value& value, std::string_view name, const std::string& why) const {
    return Error(ErrorKind::invalid, "configuration " + spc::quoted(file_) + ", line " + std::to_string(line_of(value)) + ": " +
                                         printable(prefix_ + std::string(name)) + ": " + why);
  }

  const std::string& file_;
  const toml::value& table_;
  std::string prefix_;
  std::span<const ConfigKey> keys_;
};

bool is_upper_size(const std::string& text) {
  const std::size_t digits = text.find_first_not_of("0123456789");
  if (digits == 0 || digits > 12) return false;
  const std::string_view unit = digits == std::string::npos ? "" : std::string_view(text).substr(digits);
  const unsigned long long number = std::stoull(text);
  if (unit == "%") return number >= 1 && number <= 100;
  return number > 0 &&
         (unit.empty() || (unit.size() == 1 && std::string_view("KMGTkmgt").find(unit[0]) != std::string_view::npos));
}

bool is_byte_size(const std::string& text) { return text == "0" || (is_upper_size(text) && !text.ends_with('%')); }

/// Of a text that is_byte_size().
std::uint64_t bytes_in(const std::string& text) {
  const std::size_t unit = std::string_view("KMGTkmgt").find(text.back());
  const std::uint64_t number = std::stoull(text);
  return unit == std::string_view::npos ? number : number << (10 * (unit % 4 + 1));
}

bool is_host(const std::string& text) { return parse_registry(text).has_value(); }

bool is_mirror(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (!is_host(text.substr(0, slash))) return false;
  return slash == std::string::npos || ImageReference::parse("registry.invalid/" + text.substr(slash + 1)).has_value();
}

bool is_host_or_domain(const std::string& text) { return is_host(text.starts_with("*.") ? text.substr(2) : text); }

/// A proxy with a port; without a scheme http is meant.
bool is_proxy(const std::string& text) {
  std::string_view rest = text;
  for (const std::string_view scheme : {"http://", "https://", "socks5h://", "socks5://"}) {
    if (!rest.starts_with(scheme)) continue;
    rest.remove_prefix(scheme.size());
    break;
  }
  const auto plain = [](char c) { return c > 0x20 && c < 0x7f; };
  return !rest.empty() && rest.find("://") == std::string_view::npos && std::all_of(rest.begin(), rest.end(), plain);
}

constexpr std::int64_t kYear = 366LL * 24 * 3600;

Result<void> read_registries(Config& config, const toml::value& root, const std::string& file) {
  const auto found = root.as_table().find("registries");
  if (found == root.as_table().end()) return {};
  const auto wrong = [&](const toml::value& value, const std::string& why) {
    return Error(ErrorKind::invalid,
                 "configuration " + spc::quoted(file) + ", line " + std::to_string(line_of(value)) + ": " + why);
  };
  if (!found->second.is_table()) return wrong(found->second, "registries: needs tables [registries.\"HOST:PORT\"]");
  for (const auto& [host, value] : found->second.as_table()) {
    if (!value.is_table())
      return wrong(value, "registries." + printable(host) + ": needs to be a table (hint: put the host in quotes)");
    auto name = parse_registry(host);
    if (!name) return wrong(value, "registries." + spc::quoted(host) + ": is not HOST or HOST:PORT");
    RegistryConfig registry;
    const TableReader reader(file, value, "registries." + spc::quoted(host) + ".", kRegistryKeys);
    SPC_TRY(reader.check_keys());
    SPC_TRY(reader.read("insecure", registry.insecure));
    SPC_TRY(reader.read("blocked", registry.blocked));
    SPC_TRY(reader.read("mirrors", registry.mirrors, is_mirror, "needs HOST[:PORT][/PREFIX]"));
    SPC_TRY(reader.read("mirror_tags", registry.mirror_tags));
    SPC_TRY(reader.read("login_servers", registry.login_servers, is_host, "needs HOST or HOST:PORT"));
    SPC_TRY(reader.read("require_digest", registry.require_digest));
    SPC_TRY(reader.read(
        "ca", registry.ca, [](const std::string& text) { return text.starts_with('/'); }, "needs an absolute path"));
    if (!config.registries.emplace(*name, registry).second) {
      return wrong(value, "registries." + spc::quoted(host) + ": is there twice under different names");
    }
  }
  return {};
}

Result<void> read_store(StoreConfig& store, const toml::value& root, const std::string& file) {
  const auto found = root.as_table().find("store");
  if (found == root.as_table().end()) return {};
  const auto wrong = [&](const std::string& why) {
    return Error(ErrorKind::invalid,
                 "configuration " + spc::quoted(file) + ", line " + std::to_string(line_of(found->second)) + ": store: " + why);
  };
  if (!found->second.is_table()) return wrong("needs to be a table [store]");
  const TableReader reader(file, found->second, "store.", kStoreKeys);
  SPC_TRY(reader.check_keys());
  std::string max_size = "0";
  SPC_TRY(reader.read("max_size", max_size, is_byte_size, "needs a number of bytes with K, M, G or T behind it"));
  store.max_size = bytes_in(max_size);
  SPC_TRY(reader.read("high_watermark", store.high_watermark, 100));
  SPC_TRY(reader.read("low_watermark", store.low_watermark, 100));
  if (store.low_watermark > store.high_watermark) return wrong("low_watermark is above high_watermark");
  SPC_TRY(reader.read("max_imports_per_user", store.max_imports_per_user, 64));
  if (store.max_imports_per_user == 0) return wrong("max_imports_per_user: needs a number from 1 to 64");
  return {};
}

Result<Config> config_of(const toml::value& root, const std::string& file) {
  Config config;
  const TableReader reader(file, root, "", kKeys);
  SPC_TRY(reader.check_keys({"registries", "store"}));
  SPC_TRY(reader.read(
      "default_registry", config.default_registry, [](const std::string& text) { return parse_registry(text).has_value(); },
      "needs HOST or HOST:PORT"));
  SPC_TRY(reader.read("writable", config.writable));
  SPC_TRY(reader.read("mount_home", config.mount_home));
  SPC_TRY(reader.read("upper_size", config.upper_size, is_upper_size,
                      "needs 1% to 100%, or a number of bytes with K, M, G or T behind it"));
  SPC_TRY(reader.read(
      "squashfs", config.squashfs, [](const std::string& text) { return text == "auto" || text == "kernel" || text == "fuse"; },
      "needs auto, kernel or fuse"));
  std::string pull = name_of(config.pull);
  SPC_TRY(reader.read(
      "pull", pull, [](const std::string& text) { return parse_pull_policy(text).has_value(); },
      "needs newer, missing, always or never"));
  config.pull = *parse_pull_policy(pull);
  SPC_TRY(reader.read("public_ttl", config.public_ttl, kYear));
  SPC_TRY(reader.read("private_ttl", config.private_ttl, kYear));
  SPC_TRY(reader.read("tag_ttl", config.tag_ttl, kYear));
  SPC_TRY(reader.read("max_parallel_layers", config.max_parallel_layers, 64));
  SPC_TRY(reader.read("max_image_bytes", config.max_image_bytes, std::numeric_limits<std::int64_t>::max()));
  SPC_TRY(reader.read("stall_timeout", config.stall_timeout, 3600));
  SPC_TRY(reader.read("https_proxy", config.https_proxy, is_proxy, "needs http://HOST:PORT"));
  SPC_TRY(reader.read("http_proxy", config.http_proxy, is_proxy, "needs http://HOST:PORT"));
  SPC_TRY(reader.read(
      "no_proxy", config.no_proxy,
      [](const std::string& text) { return !text.empty() && text.find_first_of(", ") == std::string::npos; },
      "needs one host or domain in each text"));
  SPC_TRY(reader.read("allowed_registries", config.allowed_registries, is_host_or_domain, "needs HOST[:PORT] or *.DOMAIN"));
  SPC_TRY(read_store(config.store, root, file));
  SPC_TRY(read_registries(config, root, file));
  return config;
}

/// toml11 draws the place of a syntax error over several lines; the line's number and the reason are enough.
std::string first_reason(std::string_view what) {
  const auto skip = [&](std::string_view prefix) {
    if (what.starts_with(prefix)) what.remove_prefix(prefix.size());
  };
  skip("[error] ");
  return printable(what.substr(0, what.find('\n')));
}

}  // namespace

const RegistryConfig& Config::registry(std::string_view host) const {
  static const RegistryConfig kDefault;
  const auto found = registries.find(host);
  return found == registries.end() ? kDefault : found->second;
}

bool Config::allows(std::string_view host) const {
  if (registry(host).blocked) return false;
  const auto fits = [&](const std::string& allowed) {
    if (allowed.starts_with("*.")) return host.ends_with(std::string_view(allowed).substr(1)) && host.size() >= allowed.size();
    return parse_registry(allowed).value() == host;
  };
  return allowed_registries.empty() || std::any_of(allowed_registries.begin(), allowed_registries.end(), fits);
}

Result<Config> parse_config(const std::string& text, const std::string& name) {
  try {
    std::istringstream stream(text);
    return config_of(toml::parse(stream, name), name);
  } catch (const toml::syntax_error& error) {
    // `--> name` and ` 3 | key = ` follow the reason.
    const std::string what = error.what();
    std::string line;
    if (const std::size_t bar = what.find(" | "); bar != std::string::npos) {
      const std::size_t start = what.find_last_of("\n ", bar - 1);
      if (start != std::string::npos) line = ", line " + what.substr(start + 1, bar - start - 1);
    }
    return Error(ErrorKind::invalid, "configuration " + spc::quoted(name) + line + ": " + first_reason(what));
  } catch (const std::exception& error) {
    return Error(ErrorKind::invalid, "configuration " + spc::quoted(name) + ": " + first_reason(error.what()));
  }
}

Result<Config> read_config(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file) {
    if (errno == ENOENT || errno == ENOTDIR) return Config{};
    return Error::from_errno(errno, "open configuration " + spc::quoted(path));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return Error::from_errno(errno, "look at configuration " + spc::quoted(path));
  if (!S_ISREG(status.st_mode)) return Error(ErrorKind::refused, "configuration " + spc::quoted(path) + ": is not a file");
  if (status.st_uid != 0 && status.st_uid != ::geteuid()) {
    return Error(ErrorKind::refused, "configuration " + spc::quoted(path) + ": does not belong to root").hint("chown root it");
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Error(ErrorKind::refused, "configuration " + spc::quoted(path) + ": can be written by others than its owner")
        .hint("chmod go-w it");
  }
  return parse_config(SPC_TRY_DURING("configuration " + spc::quoted(path), read_file(file.get(), 1 << 20)), path);
}

std::span<const ConfigKey> config_keys() { return kKeys; }
std::span<const ConfigKey> store_config_keys() { return kStoreKeys; }
std::span<const ConfigKey> registry_config_keys() { return kRegistryKeys; }

}  // namespace spc
