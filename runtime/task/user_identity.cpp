#include "task/user_identity.hpp"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>

namespace spc {
namespace {

/// Limit of groups whose names are looked up: each may be a query to a server.
constexpr std::size_t kMaxNamedGroups = 64;

std::string without_separators(const char* text) {
  std::string out = text == nullptr ? "" : text;
  std::replace_if(
      out.begin(), out.end(), [](char c) { return c == ':' || c == '\n'; }, ' ');
  return out;
}

std::string group_entry(gid_t gid, const std::string& member) {
  std::vector<char> buffer(64 * 1024);
  group entry{};
  group* found = nullptr;
  if (::getgrgid_r(gid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr)
    return {};
  return without_separators(entry.gr_name) + ":x:" + std::to_string(gid) + ":" + member;
}

/// Returns the home if it fits in a line and is a path; otherwise "/".
std::string as_home(std::string_view text) {
  constexpr std::size_t kLongest = 400;  // identities for the other tasks must fit in a message
  const bool is_path = text.starts_with('/') && text.size() <= kLongest;
  const bool is_plain =
      std::ranges::none_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  return is_path && is_plain ? std::string(text) : "/";
}

/// Returns whether the user may have this name. Another user's name would remove that user's line
/// from the image's passwd.
bool is_free_login_name(const std::string& name) {
  constexpr std::size_t kLongest = 100;
  const auto is_odd = [](unsigned char c) {
    return c <= 0x20 || c == 0x7f || c == ':' || c == '/' || c == ',';
  };
  if (name.empty() || name.size() > kLongest || name[0] == '-' || name[0] == '+' ||
      std::ranges::any_of(name, is_odd))
    return false;
  std::vector<char> buffer(16 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  return ::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) == 0 &&
         found == nullptr;
}

/// Takes name, home and shell from the user's variables.
void ask_job(UserIdentity& user, const std::map<std::string, std::string>& job) {
  const auto value = [&](const char* name) {
    const auto found = job.find(name);
    return found == job.end() ? std::string() : found->second;
  };
  for (const char* variable : {"USER", "LOGNAME", "SLURM_JOB_USER"}) {
    if (user.name.empty() && is_free_login_name(value(variable))) user.name = value(variable);
  }
  user.home = as_home(value("HOME"));
  const std::string shell = as_home(value("SHELL"));
  if (shell != "/" && shell.find(':') == std::string::npos) user.shell = shell;
}

/// Finds the calling process's user. `job`: the job's variables; nullptr: not used.
UserIdentity find_user(const std::map<std::string, std::string>* job) {
  UserIdentity user;
  user.uid = ::geteuid();
  user.gid = ::getegid();
  std::vector<char> buffer(16 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user.uid, &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr) {
    user.name = without_separators(entry.pw_name);
    user.home = as_home(entry.pw_dir == nullptr ? "" : entry.pw_dir);
    user.shell = without_separators(entry.pw_shell);
    if (user.shell.empty()) user.shell = "/bin/sh";
  } else if (job != nullptr) {
    ask_job(user, *job);
  }
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  if (!groups.empty())
    groups.resize(static_cast<std::size_t>(
        std::max(0, ::getgroups(static_cast<int>(groups.size()), groups.data()))));
  std::erase(groups, user.gid);
  groups.insert(groups.begin(), user.gid);
  if (groups.size() > kMaxNamedGroups) groups.resize(kMaxNamedGroups);
  for (const gid_t gid : groups) {
    if (auto line = group_entry(gid, user.name); !line.empty())
      user.group_entries.push_back(std::move(line));
  }
  return user;
}

}  // namespace

UserIdentity UserIdentity::of_this_process() { return find_user(nullptr); }

UserIdentity UserIdentity::of_job(const std::map<std::string, std::string>& job) {
  return find_user(&job);
}

std::string UserIdentity::for_other_tasks() const {
  return name + '\n' + home + '\n' + shell + '\n';
}

UserIdentity UserIdentity::from_first_task(std::string_view text) {
  UserIdentity user;
  user.uid = ::geteuid();
  user.gid = ::getegid();
  for (std::string* field : {&user.name, &user.home, &user.shell}) {
    const auto end = text.find('\n');
    *field = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return user;
}

UserIdentity UserIdentity::as_root() const {
  UserIdentity root;
  root.name = "root";
  root.home = "/root";
  root.shell = shell;
  return root;
}

std::string UserIdentity::shadow_entry() const { return name.empty() ? "" : name + ":*:::::::"; }

std::string UserIdentity::passwd_entry() const {
  if (name.empty()) return {};
  return name + ":x:" + std::to_string(uid) + ":" + std::to_string(gid) +
         "::" + (home.find(':') == std::string::npos ? home : "/") + ":" + shell;
}

}  // namespace spc
