#include "image/credentials/credentials_json.hpp"

#include <algorithm>

#include "base/base64.hpp"
#include "base/format.hpp"
#include "image/credentials/credentials_command.hpp"
#include "image/credentials/credentials_places.hpp"
#include "image/registry/json.hpp"

namespace spc {
namespace {

/// The members of one object in the file; none when it is not there.
Result<const Json*> table(const Json& file, const char* key) {
  static const Json kNone = Json::object();
  const Json* found = file.find(key);
  if (found == nullptr) return &kNone;
  if (!found->is_object()) return Error(ErrorKind::invalid, in_quotes(key) + " is not an object");
  return found;
}

Result<std::string> text_or_empty(const Json& object, const char* key) {
  auto text = SPC_TRY(object.text(key));
  return text ? *std::move(text) : std::string();
}

/// One entry of `auths`; empty when it holds nothing, as docker writes it beside a helper.
Result<std::optional<RegistrySecret>> secret_of_entry(const Json* found) {
  if (found == nullptr || !found->is_object()) return Error(ErrorKind::invalid, "is not an object");
  const Json& entry = *found;
  RegistrySecret secret;
  secret.username = SPC_TRY(text_or_empty(entry, "username"));
  secret.password = SecretText(SPC_TRY(text_or_empty(entry, "password")));
  secret.identity_token = SecretText(SPC_TRY(text_or_empty(entry, "identitytoken")));
  secret.registry_token = SecretText(SPC_TRY(text_or_empty(entry, "registrytoken")));
  if (const SecretText auth(SPC_TRY(text_or_empty(entry, "auth"))); !auth.empty()) {
    auto decoded = from_base64(auth.text());
    const SecretText pair(decoded ? *std::move(decoded) : std::string());
    const std::size_t colon = pair.text().find(':');
    if (colon == std::string::npos)
      return Error(ErrorKind::invalid, "\"auth\" is not USER:PASSWORD in base64");
    const std::string_view password = std::string_view(pair.text()).substr(colon + 1);
    secret.username = pair.text().substr(0, colon);
    secret.password = SecretText(std::string(password.substr(0, password.find('\0'))));
  }
  if (secret.empty()) return std::optional<RegistrySecret>();
  return std::optional(std::move(secret));
}

bool is_of(const RegistrySecret& secret, const std::string& user) {
  return user.empty() || secret.username == user;
}

/// Names of the table that fit the image, the best first.
std::vector<std::string> fitting(const Json& entries, const ImageReference& image) {
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const auto& [key, value] : entries.members()) {
    if (const std::size_t fit = fit_of(key, image); fit > 0) found.emplace_back(fit, key);
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::vector<std::string> names;
  for (auto& [fit, name] : found) names.push_back(std::move(name));
  return names;
}

Result<std::string> checked_helper(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (!name.empty() && std::all_of(name.begin(), name.end(), allowed)) return name;
  return Error(ErrorKind::invalid, in_quotes(name) + " is not the name of a credential helper");
}

Result<std::string> named_helper(const Json& file, const ImageReference& image) {
  const auto* helpers = SPC_TRY(table(file, "credHelpers"));
  for (const auto& name : fitting(*helpers, image)) {
    const Json* helper = helpers->find(name);
    if (helper == nullptr || !helper->is_text())
      return Error(ErrorKind::invalid, "\"credHelpers\": a helper is not a string");
    if (!helper->as_text().empty()) return checked_helper(helper->as_text());
  }
  return std::string();
}

}  // namespace

std::string docker_name_of(const std::string& registry) {
  return registry == "docker.io" ? "https://index.docker.io/v1/" : registry;
}

Result<std::optional<RegistrySecret>> ask_helper(const std::string& helper,
                                                 const std::string& registry) {
  const std::string program = "docker-credential-" + helper;
  const std::string step =
      formatted("query credential helper {} about {}", in_quotes(program), in_quotes(registry));
  const auto output =
      SPC_TRY_DURING(step, run_command({program, "get"}, docker_name_of(registry) + "\n"));
  const std::string& text = output.out.text();
  if (output.status != 0) {
    // What docker's own helpers say, on standard output.
    if (text.find("credentials not found") != std::string::npos)
      return std::optional<RegistrySecret>();
    return Error(ErrorKind::unavailable, formatted("{}: {}", step, output.ending()));
  }
  const Json answer = SPC_TRY_DURING(step, parse_json_object(text, "its answer"));
  RegistrySecret secret;
  secret.username = SPC_TRY_DURING(step, text_or_empty(answer, "Username"));
  SecretText shared(SPC_TRY_DURING(step, text_or_empty(answer, "Secret")));
  if (shared.empty()) return Error(ErrorKind::invalid, step + ": its response has no secret");
  (secret.username == "<token>" ? secret.identity_token : secret.password) = std::move(shared);
  secret.source = program;
  return std::optional(std::move(secret));
}

Result<std::string> helper_for(const Json& file, const std::string& path,
                               const ImageReference& image) {
  const std::string step = "credentials " + in_quotes(path);
  if (auto helper = SPC_TRY_DURING(step, named_helper(file, image)); !helper.empty()) return helper;
  const std::string store = SPC_TRY_DURING(step, text_or_empty(file, "credsStore"));
  if (store.empty()) return store;
  return SPC_TRY_DURING(step, checked_helper(store));
}

Result<std::optional<RegistrySecret>> secret_in_json(const Json& file, const std::string& path,
                                                     const ImageReference& image,
                                                     const std::string& user) {
  const std::string step = "credentials " + in_quotes(path);
  const auto asked = [&](const std::string& helper) -> Result<std::optional<RegistrySecret>> {
    auto secret = SPC_TRY_DURING(step, ask_helper(helper, image.registry));
    if (secret && !is_of(*secret, user)) secret.reset();
    return secret;
  };
  const std::string helper = SPC_TRY_DURING(step, named_helper(file, image));
  if (!helper.empty()) return asked(helper);

  const auto* entries = SPC_TRY_DURING(step, table(file, "auths"));
  bool listed = false;
  for (const auto& name : fitting(*entries, image)) {
    auto secret = SPC_TRY_DURING(formatted("{}: entry {}", step, in_quotes(name)),
                                 secret_of_entry(entries->find(name)));
    listed = true;
    if (!secret || !is_of(*secret, user)) continue;
    secret->source = path;
    return secret;
  }
  const std::string store = SPC_TRY(helper_for(file, path, image));
  if (store.empty()) return std::optional<RegistrySecret>();
  auto secret = asked(store);
  // One that serves all registries and is not here matters only if it is known to have an answer.
  if (!secret && secret.error().kind() == ErrorKind::not_found && !listed)
    return std::optional<RegistrySecret>();
  return secret;
}

}  // namespace spc
