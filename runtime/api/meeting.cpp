#include "meeting/meeting.hpp"

#include <unistd.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "launch/policy/submit_rules.hpp"
#include "spank_container/runtime.h"

struct spc_meeting {
  spc::Meeting meeting;
  std::string variable;
};

static_assert(std::string_view(SPC_MEETING_VARIABLE) == spc::kMeetingVariable);

int spc_srun_listen(uint16_t* port) {
  if (port == nullptr) return -1;
  try {
    auto made =
        spc::Listener::open(spc::SubmitRules::read(SPC_CONFIG_FILE, ::geteuid()).srun_ports);
    if (!made) return -1;
    *port = made->port;
    return made->socket.release();
  } catch (const std::exception&) {  // out of memory
    return -1;
  }
}

int spc_meeting_open(spc_meeting** meeting, const char** variable) {
  if (meeting == nullptr || variable == nullptr) return SPC_E_INVALID;
  *meeting = nullptr;
  try {
    auto made = std::make_unique<spc_meeting>();
    const auto rules = spc::SubmitRules::read(SPC_CONFIG_FILE, ::geteuid());
    const auto address = made->meeting.open(rules.srun_ports, rules.fanout);
    if (!address) return SPC_E_SYSTEM;
    made->variable = address->variable();
    *variable = made->variable.c_str();
    *meeting = made.release();
    return SPC_OK;
  } catch (const std::exception&) {  // out of memory
    return SPC_E_NO_SPACE;
  }
}

void spc_meeting_start(spc_meeting* meeting, uint32_t nodes, const char* image, spc_log_fn log,
                       void* arg) {
  if (meeting == nullptr) return;
  try {
    meeting->meeting.start(
        nodes, image != nullptr ? image : "",
        [log, arg](spc::Meeting::About about, const std::string& line) {
          if (log != nullptr)
            log(about == spc::Meeting::About::progress ? SPC_LOG_INFO : SPC_LOG_DEBUG, line.c_str(),
                arg);
        });
  } catch (const std::exception&) {
    // Out of memory: nobody is answered, and each node goes alone.
  }
}

void spc_meeting_free(spc_meeting* meeting) { delete meeting; }
