/* libspank_container.so.1: containers for the tasks of a Slurm step.
 *
 * Order of calls in slurmstepd, with the SPANK callback that each belongs in:
 *
 *   init (slurmd)           spc_node_setup
 *   init_post_opt           spc_open, spc_step_open
 *   user_init               spc_step_start
 *   task_init_privileged    spc_task_keep_privilege
 *   task_init               spc_task_enter
 *   task_exit               spc_step_finish
 *   exit                    spc_close
 *
 * In srun, sbatch and salloc: spc_open, spc_check, spc_close. spc_configure belongs before spc_check and spc_task_enter.
 *
 * Functions return SPC_OK or a negative code; the text of the last failure of a handle is spc_error_message().
 * Nothing is thrown, no signal handler is set, no descriptor is left open across exec. All strings are borrowed for the
 * call only. A handle is used by one thread at a time. */
#ifndef SPANK_CONTAINER_RUNTIME_H
#define SPANK_CONTAINER_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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
  SPC_E_INVALID = -1,     /* what the user asked for is wrong, or a wrong call */
  SPC_E_NOT_FOUND = -2,   /* image, path or directory does not exist */
  SPC_E_REFUSED = -3,     /* no permission, or the site's policy */
  SPC_E_UNAVAILABLE = -4, /* a service does not answer; trying again may help */
  SPC_E_NO_SPACE = -5,    /* disk, memory, quota or a table is full */
  SPC_E_CORRUPT = -6,     /* bytes are not what their digest promises */
  SPC_E_SYSTEM = -7,      /* a system call failed */
  SPC_E_INTERNAL = -8     /* a mistake of ours */
};

/* A notice is what every node of the step says: to be told by one of its tasks. A record is for the administrator: one line of
 * key=value for each start on a node. */
enum { SPC_LOG_DEBUG = 0, SPC_LOG_INFO = 1, SPC_LOG_WARNING = 2, SPC_LOG_NOTICE = 3, SPC_LOG_RECORD = 4 };

/* Gets one line without a line end; may be called during any function below. */
typedef void (*spc_log_fn)(int level, const char *line, void *arg);

typedef struct spc_runtime spc_runtime;

enum { SPC_UNSET = -1, SPC_NO = 0, SPC_YES = 1 };

/* What the user asked for. Members are only ever added at the end. */
struct spc_options {
  size_t size;               /* sizeof as the caller compiled it */
  const char *image;         /* NULL or empty only with a name; [docker://][USER@][REGISTRY/ or REGISTRY#]NAME[:TAG][@DIGEST], oci:DIR, ./PATH, ... */
  const char *const *mounts; /* NULL-terminated; each SRC[:DST[:FLAGS]][,...]; or NULL */
  const char *workdir;       /* or NULL: the image's */
  const char *const *env;    /* NULL-terminated names that keep the job's value, each may be a comma list; or NULL */
  int writable;              /* SPC_UNSET: the site's default */
  int mount_home;            /* SPC_UNSET: the site's default */
  const char *batch_script;  /* of a batch step, or NULL */
  const char *pull;          /* newer, missing, always or never; or NULL: the site's default */
  const char *platform;      /* OS/ARCHITECTURE[/VARIANT]; or NULL: the node's */
  int verbose;               /* 1: say where the time of an import went, too */
  const char *name;          /* NAME[:auto|create|exec|no_exec|replace], or JOB.STEP; or NULL: without a name */
  const char *save;          /* file that the container becomes when its tasks have ended; or NULL */
  const char *const *unshare; /* NULL-terminated; each NS[,NS...] of net, ipc, uts, pid; or NULL */
  const char *tmpfs_size;    /* how much can be written: bytes with K, M, G, T, or N% of the memory; or NULL */
  const char *const *command; /* what the task will execute, for `explain`; or NULL */
  int remap_root;            /* SPC_UNSET: the site's default */
  int entrypoint;            /* SPC_UNSET: the site's default */
  int entrypoint_log;        /* SPC_YES: show what the entrypoint prints */
  int contain;               /* SPC_YES: nothing of the user's is mounted, home and /tmp are empty */
  int private_layer;         /* SPC_YES: each task has a writable layer and /tmp of its own */
  int slurm;                 /* SPC_YES: Slurm's commands work inside */
  int explain;               /* SPC_YES: say through the log what would be executed, then end the process with status 0 */
  const char *batch;         /* script or steps: of a batch step, the latter leaves the script outside; or NULL: the site's default */
  int gpu;                   /* SPC_UNSET: GPUs work inside if the step has any and the site lets */
  const char *const *devices; /* NULL-terminated names of CDI, VENDOR/CLASS=NAME, each may be a comma list; or NULL */
  const char *mpi;           /* image or host: whose MPI; or NULL: the site's default */
};

struct spc_step {
  size_t size;
  uid_t uid; /* the job's user */
  gid_t gid;
  uint32_t job_id; /* Slurm's numbers of the step */
  uint32_t step_id;
};

/* How spc_task_enter sees and changes the job's environment. */
struct spc_environment {
  size_t size;
  const char *const *variables; /* NAME=VALUE, NULL-terminated */
  void (*set)(const char *name, const char *value, void *arg);
  void (*unset)(const char *name, void *arg);
  void *arg;
  void (*before_entering)(void *arg); /* or NULL; called on the host when everything is ready */
};

/* A handle; free it with spc_close(). `log` may be NULL. */
SPC_API int spc_open(spc_log_fn log, void *arg, spc_runtime **out);
/* Ends what the handle holds: kills the step's agent without waiting for its work. NULL is fine. */
SPC_API void spc_close(spc_runtime *rt);
/* Why the last call on this handle failed: one line; valid until the next call on it. */
SPC_API const char *spc_error_message(const spc_runtime *rt);

/* What plugstack.conf overrides: KEY=VALUE with keys of config.toml, NULL-terminated. For all later calls on this handle. */
SPC_API int spc_configure(spc_runtime *rt, const char *const *settings);
/* What every line for the user begins with, "spank-container: " or "pyxis: ", as the site has it. Static. */
SPC_API const char *spc_message_prefix(const spc_runtime *rt);

/* Checks the form of the options, without touching anything. */
SPC_API int spc_check(spc_runtime *rt, const struct spc_options *options);
/* In srun, sbatch and salloc, as the user, for options that spc_check accepts: refuses what the configuration of this machine
 * does not allow, or an image that its registry does not have if the site wants to know (`check_at_submit`). */
SPC_API int spc_check_site(spc_runtime *rt, const struct spc_options *options);

/* As root, when slurmd starts: makes the directories of the node. */
SPC_API int spc_node_setup(spc_runtime *rt);

/* As root, when a job has ended: removes the containers that had a name within it. */
SPC_API int spc_job_epilog(spc_runtime *rt, uid_t uid, uint32_t job_id);

/* Makes the channel that the tasks will inherit; in the process that forks them. */
SPC_API int spc_step_open(spc_runtime *rt);
/* Starts the step's agent; root must be the saved user id. */
SPC_API int spc_step_start(spc_runtime *rt, const struct spc_step *step);

/* As root in the task's process: keeps, unused, the privilege that spc_task_enter needs. */
SPC_API int spc_task_keep_privilege(spc_runtime *rt);
/* As the user in the task's process, shortly before exec: enters the container, preparing it if this task is the first; or
 * leaves it outside, if it is a batch script that is to stay there.
 * May take as long as fetching the image takes. Afterwards, also after a failure, the process has no privilege. */
SPC_API int spc_task_enter(spc_runtime *rt, const struct spc_options *options, const struct spc_environment *environment);

/* Instead, for a task that is to have no container: it stays on the host, without what spc_task_keep_privilege kept. */
SPC_API int spc_task_stay_outside(spc_runtime *rt);

/* As root in slurmstepd, when the last of this node's `tasks` has ended, of which `killed` were ended by SIGTERM or SIGKILL:
 * waits for what is still done for the user (saving his container), in processes of the step that end with it at the latest
 * when it is killed. Progress goes to the log. */
SPC_API int spc_step_finish(spc_runtime *rt, uint32_t tasks, uint32_t killed);

/* A setting of the node's config.toml that is true or false; `otherwise` where it is not set. On the host, as anybody. */
SPC_API int spc_site_flag(const char *key, int otherwise);

/* Version of the package, for example "0.1.0". */
SPC_API const char *spc_version(void);

#ifdef __cplusplus
}
#endif
#endif
