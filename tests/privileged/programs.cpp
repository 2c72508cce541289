#include "programs.hpp"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/process/own_program.hpp"
#include "base/socket.hpp"
#include "protocol/import.hpp"

namespace fs = std::filesystem;

namespace spc {
namespace {


UniqueFd new_layer() {
  ImportMessage message{.kind = ImportMessageKind::new_layer, .digest = {}};
  if (!send_struct(kImportSocket, message)) return {};
  auto descriptors = receive_struct(kImportSocket, message, 1);
  return descriptors && descriptors->size() == 1 ? std::move(descriptors->front()) : UniqueFd();
}

void publish(char content, UniqueFd file) {
  ImportMessage message{.kind = ImportMessageKind::publish, .digest = {}};
  message.digest.bytes.fill(static_cast<unsigned char>(content));
  const UniqueFd reader(::open(("/proc/self/fd/" + std::to_string(file.get())).c_str(), O_RDONLY | O_CLOEXEC));
  file.reset();
  const int passed[] = {reader.get()};
  (void)send_struct(kImportSocket, message, passed);
}

int play_import() {
  std::string wishes(1000, '\0');
  wishes.resize(static_cast<std::size_t>(::recv(kImportSource, wishes.data(), wishes.size(), 0)));
  std::vector<UniqueFd> files;
  for (const char wish : wishes) {
    if (wish == 'E') continue;
    files.push_back(new_layer());
    if (!files.back() || !write_all(files.back().get(), std::string(1, wish))) return 1;
  }
  for (std::size_t i = 0, file = 0; i < wishes.size(); ++i) {
    if (wishes[i] != 'E') {
      publish(wishes[i], std::move(files[file++]));
      continue;
    }
    ImportMessage message{.kind = ImportMessageKind::evict, .digest = {}};
    message.digest.bytes.fill(1);
    (void)send_struct(kImportSocket, message);
  }
  std::vector<std::string> answers;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    ImportMessage answer;
    if (!receive_struct(kImportSocket, answer)) return 1;
    answers.push_back(std::to_string(answer.digest.bytes[0]) + ":" + std::to_string(static_cast<unsigned>(answer.kind)) +
                      (answer.error.is_set() ? " " + answer.error.error().message() : ""));
  }
  std::sort(answers.begin(), answers.end());
  ImportMessage end{.kind = ImportMessageKind::failed, .digest = {}};
  std::string text;
  for (const std::string& answer : answers) text += answer + "|";
  end.error = WireError(Error::with(ErrorKind::no_space, EDQUOT, text, "of import"));
  (void)send_struct(kImportSocket, end);
  ::pause();
  return 0;
}

int play_verifier() {
  char content = 0;
  if (::pread(3, &content, 1, 0) != 1) return 2;
  // Each waits until the other has opened the FIFO, in vain where they run one after the other.
  ::alarm(10);
  const std::string both = own_program("both-verifiers");
  if (content == 'b') ::close(::open(both.c_str(), O_RDONLY));
  if (content == 'c') ::close(::open(both.c_str(), O_WRONLY));
  if (content == 'c') ::abort();
  return content == 'g' ? 0 : 1;
}

}  // namespace

void install_programs() {
  const fs::path directory = kPlaceOfPrograms;
  if (::mount("programs", directory.parent_path().c_str(), "tmpfs", 0, "mode=755") != 0) {
    std::perror("privileged_test: mount over the place of the programs");
    ::_exit(1);
  }
  fs::create_directories(directory);
  const fs::path both = directory / "both-verifiers";
  ::mkfifo(both.c_str(), 0600);
  ::chmod(both.c_str(), 0666);  // whatever the umask
  const fs::path itself = fs::read_symlink("/proc/self/exe");
  const std::pair<const char*, fs::path> programs[] = {
      {"fuse", SPC_FUSE_PROGRAM}, {"import", itself}, {"layer-verifier", itself}, {"agent", itself}, {"sleep", "/bin/sleep"}};
  for (const auto& [name, program] : programs) {
    // Mounts, not links: the users that execute them may not be able to enter the directory of the build.
    std::ofstream(directory / name).close();
    if (::mount(program.c_str(), (directory / name).c_str(), nullptr, MS_BIND, nullptr) != 0) {
      std::perror(("privileged_test: mount " + program.string()).c_str());
      ::_exit(1);
    }
  }
}

std::optional<int> play(std::string_view program, std::string_view word) {
  char byte = 0;
  if (program == own_program("agent") && word == "step") return ::recv(3, &byte, 1, 0) == 0 ? 0 : 1;
  if (program == own_program("import")) return play_import();
  if (program == own_program("layer-verifier")) return play_verifier();
  return std::nullopt;
}

}  // namespace spc
