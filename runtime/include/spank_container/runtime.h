/* libspank_container.so.1: containers for the tasks of a Slurm step.
 *
 * Order of calls in slurmstepd, with the SPANK callback of each:
 *
 *   init (slurmd)           spc_node_setup
 *   init_post_opt           spc_open, spc_step_open
 *   user_init               spc_step_start
 *   task_init_privileged    spc_task_keep_privilege
 *   task_init               spc_task_begin, spc_task_enter, spc_task_flags
 *   task_exit               spc_step_finish
 *   exit                    spc_close
 *
 * In srun, sbatch and salloc: spc_option_at for each option; spc_open, spc_summarize, spc_check,
 * spc_close; in srun spc_tags_ask before the step is made, and spc_tags_known before it starts,
 * spc_meeting_open and spc_meeting_start likewise. Call spc_configure before spc_check and
 * spc_task_enter.
 *
 * Functions return SPC_OK or a negative code; spc_error_message() returns the text of a handle's
 * last failure. Nothing is thrown, no signal handler is installed, no descriptor stays open across
 * exec. Strings are borrowed for the duration of the call. Only one thread may use a handle at a
 * time. */
#ifndef SPANK_CONTAINER_RUNTIME_H
#define SPANK_CONTAINER_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/** A variable of the job: when it was submitted, in seconds since 1970. What a registry has said
 * since of a tag need not be asked again for job_tag_ttl seconds (config.toml). */
#define SPC_SINCE_VARIABLE "SLURM_SPANK_SCONTAINER_SINCE"

/** Where srun listens for nodes of its step (spc_meeting_open). To be taken away before the task's
 * program starts. */
#define SPC_MEETING_VARIABLE "SLURM_SCONTAINER_MEETING"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SPC_API __attribute__((visibility("default")))
#else
#define SPC_API
#endif

enum {
  SPC_OK = 0,
  SPC_E_INVALID = -1,     /* invalid request or call */
  SPC_E_NOT_FOUND = -2,   /* image, path or directory does not exist */
  SPC_E_REFUSED = -3,     /* no permission, or the site's policy */
  SPC_E_UNAVAILABLE = -4, /* a service does not respond; retry later */
  SPC_E_NO_SPACE = -5,    /* disk, memory, quota or a table is full */
  SPC_E_CORRUPT = -6,     /* data does not match its digest */
  SPC_E_SYSTEM = -7,      /* a system call failed */
  SPC_E_INTERNAL = -8     /* a bug in this library */
};

/* A notice is the same on every node of the step: print it in one task only. A record is for the
 * administrator: one line of key=value per start on a node. */
enum {
  SPC_LOG_DEBUG = 0,
  SPC_LOG_INFO = 1,
  SPC_LOG_WARNING = 2,
  SPC_LOG_NOTICE = 3,
  SPC_LOG_RECORD = 4
};

/* Receives one line without newline; may be called by any function below. */
typedef void (*spc_log_fn)(int level, const char* line, void* arg);

typedef struct spc_runtime spc_runtime;

/* One option of a container, for the caller to register. Members are only ever added at the end. */
struct spc_option {
  size_t size;          /* sizeof as the caller compiled it */
  const char* name;     /* without dashes, for example "container-image" */
  const char* argument; /* shown in --help; NULL: none */
  const char* help;
  const char* opposite; /* the opposite switch; or NULL */
  int is_list;          /* 1: may be repeated, or be one value with commas */
};

/* What the user asked for. Members are only ever added at the end. */
struct spc_options {
  size_t size; /* sizeof as the caller compiled it */
  const char* const*
      given; /* NULL-terminated; each NAME=VALUE, or NAME of an option without a value */
  const char* const*
      variables; /* the user's environment, NAME=VALUE, NULL-terminated: sets options that are not
                    given, by SCONTAINER_NAME and PYXIS_CONTAINER_NAME; or NULL */
  const char* batch_script;   /* of a batch step, or NULL */
  const char* const* command; /* of the task, for --container-explain; or NULL */
  int only_pull; /* 1: spc_task_enter brings the image into the store and exits with status 0 */
  const char* resolved; /* what spc_tags_known said in srun, or NULL */
  const char* meeting;  /* the variable that spc_meeting_open made in srun, or NULL */
  int begins_job; /* 1: in sbatch and salloc, and in an srun that is not in a job: it is submitted
                     now */
  const char* partitions; /* for spc_check_site: what srun --partition says, or NULL */
  const char* constraint; /* the same of --constraint */
};

/* Summary of the options, before their values are checked. */
struct spc_summary {
  size_t size;
  int container; /* 1: a container is requested, by image or name */
  int explain; /* 1: dry run: spc_task_enter logs what would be executed, and exits with status 0 */
  int verbose; /* 1: print a timing breakdown */
  char image[256]; /* the image as the user calls it, but for secrets of a URL; "": none, or its
                      name is longer */
};

struct spc_step {
  size_t size;
  uid_t uid; /* the job's user */
  gid_t gid;
  uint32_t job_id; /* Slurm's numbers of the step */
  uint32_t step_id;
};

/* What spc_environment.read answers besides SPC_OK. */
enum {
  SPC_READ_OUTSIDE = 1, /* this task has no container and stays on the host */
  SPC_READ_LEAVE =
      2 /* it has nothing to do, as another task of the step does it: exit with status 0 */
};

/* What config.toml says to tasks, of spc_task_flags. */
enum { SPC_FLAG_ERROR_REPORT = 1, SPC_FLAG_TASK_PROLOG_ON_HOST = 2 };

/* How spc_task_enter sees and changes the job's environment. */
struct spc_environment {
  size_t size;
  const char* const* variables; /* NAME=VALUE, NULL-terminated */
  void (*set)(const char* name, const char* value, void* arg);
  void (*unset)(const char* name, void* arg);
  void* arg;
  void (*before_entering)(
      void* arg); /* or NULL; called on the host when everything is ready, in the task with its
                     privilege: it must not look at what users have written */
  /* Or NULL. If it is set, `options` of spc_task_enter is NULL, and nobody looks at `variables`
   * before this has said what they are: it fills both in, and is called where users' texts may be
   * read. That is in processes that have no capability (but CAP_SYS_CHROOT, unused), and in the
   * task once it has none. SPC_OK, SPC_READ_*, or a negative code: the caller knows why. Both are
   * borrowed until spc_task_enter returns. */
  int (*read)(const struct spc_options** options, const char* const** variables, void* arg);
  /* Or NULL; called before `read` in a process that one of the node's tasks has started to set the
   * container up. The `first` (1) speaks for all of them: what goes to the log is that of the node.
   * Where each task has its own container, others (0) come later. */
  void (*before_leading)(int first, void* arg);
};

/* A handle; free it with spc_close(). `log` may be NULL. */
SPC_API int spc_open(spc_log_fn log, void* arg, spc_runtime** out);
/* Frees the handle and kills the step's agent without waiting for it. NULL is allowed. */
SPC_API void spc_close(spc_runtime* rt);
/* Reason of the last failure on this handle: one line; valid until the next call on it. */
SPC_API const char* spc_error_message(const spc_runtime* rt);

/* Settings of plugstack.conf: KEY=VALUE with keys of config.toml, NULL-terminated. Applies to later
 * calls on this handle. */
SPC_API int spc_configure(spc_runtime* rt, const char* const* settings);
/* Prefix of every line for the user, "spank-container: " or "pyxis: ", as configured by the site.
 * Static. */
SPC_API const char* spc_message_prefix(const spc_runtime* rt);

/* Option `number`, from 0; SPC_E_NOT_FOUND after the last. Needs no handle; the texts are static.
 */
SPC_API int spc_option_at(size_t number, struct spc_option* out);
/* Refuses unknown and contradicting options, and summarizes the others. Does not check values. */
SPC_API int spc_summarize(spc_runtime* rt, const struct spc_options* options,
                          struct spc_summary* out);
/* Checks the syntax of the options, without side effects. */
SPC_API int spc_check(spc_runtime* rt, const struct spc_options* options);
/* In srun, sbatch and salloc, as the user, for options that spc_check accepts: refuses what this
 * machine's configuration does not allow and, with `check_at_submit`, an image that its registry
 * does not have or that does not fit the nodes. What is only doubtful is a warning in the log. With
 * `pull_at_submit` it then starts the site's program for the image of a job that begins. */
SPC_API int spc_check_site(spc_runtime* rt, const struct spc_options* options);
/* The image's digest, if spc_check_site has asked for it; "": it has not. Valid until the next call
 * on this handle. */
SPC_API const char* spc_image_digest(const spc_runtime* rt);

/* What the tags of a step's images stand for. */
typedef struct spc_tags spc_tags;
/* In srun, as the user, for options that spc_check accepts: begins to ask the registry, in the
 * background. `tags` points to NULL before the first component of a step; free it with
 * spc_tags_free. */
SPC_API int spc_tags_ask(spc_runtime* rt, const struct spc_options* options, spc_tags** tags);
/* What is known after so many milliseconds at most, for the `resolved` of the step's tasks; asks no
 * more. "": nothing is, and the nodes ask. Valid as long as `tags`, which may be NULL. */
SPC_API const char* spc_tags_known(spc_tags* tags, unsigned milliseconds);
SPC_API void spc_tags_free(spc_tags* tags);

/* In srun, as the user: a socket that listens at a free port of `srun_ports` (config.toml), or of
 * all, for whoever speaks to the nodes of its step; non-blocking, close-on-exec, the caller's own.
 * -1: there is none. */
SPC_API int spc_srun_listen(uint16_t* port);

/* Where the nodes of a step that lack an image find each other: one takes it from the registry, the
 * others from nodes. */
typedef struct spc_meeting spc_meeting;
/* In srun, as the user, before the step is made: listens, as spc_srun_listen. `variable` points to
 * the value that the step's tasks find in SPC_MEETING_VARIABLE, for `meeting` of their options;
 * valid as long as `meeting`, which is to be freed with spc_meeting_free. */
SPC_API int spc_meeting_open(spc_meeting** meeting, const char** variable);
/* When the step is about to start on so many nodes (0: unknown): answers them in a thread of its
 * own, without signals, until spc_meeting_free. How it goes on is told through `log`, which may be
 * NULL, in that thread, and as SPC_LOG_DEBUG by spc_meeting_free what it was in the end. `image`:
 * how to call it there, or NULL. */
SPC_API void spc_meeting_start(spc_meeting* meeting, uint32_t nodes, const char* image,
                               spc_log_fn log, void* arg);
/* Never waits for a node. NULL is allowed. */
SPC_API void spc_meeting_free(spc_meeting* meeting);

/* As root, when slurmd starts: creates the node's directories. */
SPC_API int spc_node_setup(spc_runtime* rt);

/* As root, when a job has ended: removes its named containers. */
SPC_API int spc_job_epilog(spc_runtime* rt, uid_t uid, uint32_t job_id);

/* Creates the channel that the tasks inherit; in the process that forks them. */
SPC_API int spc_step_open(spc_runtime* rt);
/* Starts the step's agent; root must be the saved user id. */
SPC_API int spc_step_start(spc_runtime* rt, const struct spc_step* step);

/* As root in the task's process: keeps the privilege that spc_task_enter needs, unused. */
SPC_API int spc_task_keep_privilege(spc_runtime* rt);
/* As the user in the task's process, before anything else: of what spc_task_keep_privilege kept,
 * only what entering takes is left. Reports nothing: if it fails, entering reports why. */
SPC_API void spc_task_begin(void);
/* What the node's config.toml says, as the step's agent has told this task: SPC_FLAG_*; -1: it has
 * said nothing. No file is read. In the task, from before_entering on. */
SPC_API int spc_task_flags(const spc_runtime* rt);
/* As the user in the task's process, shortly before exec: enters the container, which the first
 * task has set up by a process of its own; or stays on the host, if it is a batch script that does
 * not run in the container. May take as long as the image pull. Afterwards, even after a failure,
 * the process has no privilege. */
SPC_API int spc_task_enter(spc_runtime* rt, const struct spc_options* options,
                           const struct spc_environment* environment);

/* Alternative for a task without a container: it stays on the host and drops what
 * spc_task_keep_privilege kept. NULL is allowed. */
SPC_API int spc_task_stay_outside(spc_runtime* rt);

/* As root in slurmstepd, when the last of this node's `tasks` has ended, `killed` of them by
 * SIGTERM or SIGKILL: waits for work that remains for the user (saving the container, stop hooks)
 * in processes of the step, then ends the agent. Progress goes to the log. */
SPC_API int spc_step_finish(spc_runtime* rt, uint32_t tasks, uint32_t killed);

/* A boolean setting of the node's config.toml; `otherwise` if it is not set. On the host, as any
 * user. */
SPC_API int spc_site_flag(const char* key, int otherwise);

/* The program that can start a script in a container in Slurm's place, whatever is in the image:
 * executed with the arguments that Slurm gives its own. "": out of memory. Static. */
SPC_API const char* spc_launcher_path(void);

/* Version of the package, for example "0.1.0". */
SPC_API const char* spc_version(void);

#ifdef __cplusplus
}
#endif
#endif
