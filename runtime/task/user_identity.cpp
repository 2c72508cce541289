#include "task/user_identity.hpp"

#include <grp.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>

namespace spc {
namespace {

/// The names of more groups than these are not looked up: each may be a question to a server.
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
  if (::getgrgid_r(gid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return {};
  return without_separators(entry.gr_name) + ":x:" + std::to_string(gid) + ":" + member;
}

}  // namespace

UserIdentity UserIdentity::of_this_process() {
  UserIdentity user;
  user.uid = ::geteuid();
  user.gid = ::getegid();
  std::vector<char> buffer(16 * 1024);
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(user.uid, &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr) {
    user.name = without_separators(entry.pw_name);
    user.home = without_separators(entry.pw_dir);
    user.shell = without_separators(entry.pw_shell);
    if (user.home.empty() || user.home[0] != '/') user.home = "/";
    if (user.shell.empty()) user.shell = "/bin/sh";
  }
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  if (!groups.empty())
    groups.resize(static_cast<std::size_t>(std::max(0, ::getgroups(static_cast<int>(groups.size()), groups.data()))));
  std::erase(groups, user.gid);
  groups.insert(groups.begin(), user.gid);
  if (groups.size() > kMaxNamedGroups) groups.resize(kMaxNamedGroups);
  for (const gid_t gid : groups) {
    if (auto line = group_entry(gid, user.name); !line.empty()) user.group_entries.push_back(std::move(line));
  }
  return user;
}

std::string UserIdentity::for_other_tasks() const { return name + '\n' + home + '\n' + shell + '\n'; }

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
  return name + ":x:" + std::to_string(uid) + ":" + std::to_string(gid) + "::" + home + ":" + shell;
}

}  // namespace spc
