#include "reference/request.hpp"

#include <set>

#include "base/format.hpp"
#include "base/text.hpp"

namespace spc {

std::optional<std::int64_t> TagAge::parse_time(std::string_view text) {
  return parse_number<std::int64_t>(text);
}

std::optional<PullPolicy> parse_pull_policy(std::string_view text) {
  for (const PullPolicy policy :
       {PullPolicy::newer, PullPolicy::missing, PullPolicy::always, PullPolicy::never}) {
    if (text == name_of(policy)) return policy;
  }
  return std::nullopt;
}

const char* name_of(PullPolicy policy) {
  switch (policy) {
    case PullPolicy::newer: return "newer";
    case PullPolicy::missing: return "missing";
    case PullPolicy::always: return "always";
    case PullPolicy::never: return "never";
  }
  return "";
}

Result<Platform> Platform::parse(std::string_view text) {
  const auto part_ok = [](std::string_view part) {
    return !part.empty() && part.size() <= 32 &&
           part.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._-") ==
               std::string_view::npos;
  };
  Platform platform;
  std::string* const parts[] = {&platform.os, &platform.architecture, &platform.variant};
  std::size_t count = 0;
  for (std::string_view rest = text; count < 3; ++count) {
    const std::size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    if (!part_ok(part)) break;
    *parts[count] = part;
    if (slash == std::string_view::npos) {
      if (count >= 1) return platform.normalized();
      break;
    }
    rest.remove_prefix(slash + 1);
  }
  return Error(
      ErrorKind::invalid,
      formatted("platform {}: use OS/ARCHITECTURE, for example linux/amd64", in_quotes(text)));
}

Platform Platform::host() {
#if defined(__x86_64__)
  return {"linux", "amd64", ""};
#elif defined(__aarch64__)
  return {"linux", "arm64", ""};
#else
#error "this architecture's name in the OCI image specification is not known here"
#endif
}

Platform Platform::normalized() const {
  struct Alias {
    const char *other, *architecture, *variant;
  };
  static constexpr Alias kAliases[] = {
      {"x86_64", "amd64", ""},  {"x86-64", "amd64", ""}, {"x64", "amd64", ""},
      {"aarch64", "arm64", ""}, {"armhf", "arm", "v7"},  {"armv7l", "arm", "v7"},
      {"armel", "arm", "v6"},   {"i386", "386", ""},     {"i486", "386", ""},
      {"i586", "386", ""},      {"i686", "386", ""},     {"x86", "386", ""},
  };
  Platform normal = *this;
  for (std::string* part : {&normal.os, &normal.architecture, &normal.variant}) {
    for (char& c : *part) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  }
  for (const Alias& alias : kAliases) {
    if (normal.architecture != alias.other) continue;
    normal.architecture = alias.architecture;
    if (normal.variant.empty()) normal.variant = alias.variant;
    break;
  }
  if (!normal.variant.empty() && normal.variant[0] >= '0' && normal.variant[0] <= '9')
    normal.variant.insert(0, "v");
  return normal;
}

std::string Platform::str() const {
  return os + "/" + architecture + (variant.empty() ? "" : "/" + variant);
}

std::optional<std::string> ref_file_of(const ImageReference& reference, const Platform& platform) {
  auto name = reference.ref_file_name();
  if (!name || platform.str() == Platform::host().str()) return name;
  *name += "@" + platform.os + "%2F" + platform.architecture +
           (platform.variant.empty() ? "" : "%2F" + platform.variant);
  return name->size() <= 255 ? name : std::nullopt;
}

std::optional<std::string> ref_file_of(const ImageReference& tag, const Platform& platform,
                                       const Digest& resolved) {
  auto name = ref_file_of(tag, platform);
  if (name) *name += "@" + resolved.str();
  return name && name->size() <= 255 ? name : std::nullopt;
}

std::optional<Digest> resolved_tag(const ImageReference& tag, std::string_view words) {
  if (tag.digest || words.empty()) return std::nullopt;
  const std::string wanted = tag.canonical() + "@";
  for (const std::string_view word : split(words, ' ')) {
    if (!word.starts_with(wanted)) continue;
    const auto digest = Digest::parse(word.substr(wanted.size()));
    return digest ? std::optional(*digest) : std::nullopt;
  }
  return std::nullopt;
}

std::string ImportRequest::serialize() const {
  std::string out;
  const auto add = [&](std::string_view key, std::string_view value) {
    add_record(out, key, value);
  };
  add("image", image);
  add("platform", platform.str());
  add("config", config);
  if (!user_containers.empty()) add("user_containers", user_containers);
  if (pull) add("pull", name_of(*pull));
  if (manifest) add("manifest", manifest->str());
  if (resolved) add("resolved", resolved->str());
  add("uid", std::to_string(uid));
  if (since) add("since", std::to_string(*since));
  if (!registry_user.empty()) add("registry_user", registry_user);
  if (user_store) add("user_store", "yes");
  if (meter) add("meter", "yes");
  if (verbose) add("verbose", "yes");
  if (record) add("record", "yes");
  if (step_nodes != 0) add("step_nodes", std::to_string(step_nodes));
  if (only_digest) add("only_digest", "yes");
  if (own_layers) add("own_layers", "yes");
  if (only_shared) add("only_shared", "yes");
  return out;
}

Result<ImportRequest> ImportRequest::parse(std::string_view bytes) {
  const auto wrong = [](std::string_view what) {
    return Error(ErrorKind::internal, "import request: " + std::string(what));
  };
  ImportRequest request;
  std::set<std::string_view> seen;
  Records records(bytes);
  while (records.next()) {
    const std::string_view key = records.key();
    const std::string_view value = records.value();
    if (!seen.insert(key).second) return wrong(in_quotes(key) + " is given twice");
    if (key == "image") {
      request.image = value;
    } else if (key == "platform") {
      request.platform = SPC_TRY(Platform::parse(value));
    } else if (key == "config") {
      request.config = value;
    } else if (key == "user_containers") {
      request.user_containers = value;
    } else if (key == "pull") {
      request.pull = parse_pull_policy(value);
      if (!request.pull) return wrong(std::string("pull is ") + kPullPolicies);
    } else if (key == "manifest") {
      request.manifest = SPC_TRY(Digest::parse(value));
    } else if (key == "resolved") {
      request.resolved = SPC_TRY(Digest::parse(value));
    } else if (key == "meter") {
      request.meter = value == "yes";
    } else if (key == "verbose") {
      request.verbose = value == "yes";
    } else if (key == "record") {
      request.record = value == "yes";
    } else if (key == "only_digest") {
      request.only_digest = value == "yes";
    } else if (key == "own_layers") {
      request.own_layers = value == "yes";
    } else if (key == "only_shared") {
      request.only_shared = value == "yes";
    } else if (key == "uid") {
      if (!read_number(value, request.uid)) return wrong("uid is not a number");
    } else if (key == "step_nodes") {
      if (!read_number(value, request.step_nodes)) return wrong("step_nodes is not a number");
    } else if (key == "since") {
      if (!read_number(value, request.since.emplace())) return wrong("since is not a number");
    } else if (key == "registry_user") {
      request.registry_user = value;
    } else if (key == "user_store") {
      request.user_store = value == "yes";
    } else {
      return wrong("unknown key " + in_quotes(key));
    }
  }
  if (records.damaged()) return wrong("a record without '=' or end");
  if (request.image.empty()) return wrong("no image");
  return request;
}

}  // namespace spc
