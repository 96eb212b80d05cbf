;;;; The number of processors for this process.

(in-package #:clgrpc.tests.os)

(test processors-are-counted
  (is (<= 1 (os:processor-count) 1024))
  (is (< 0 (os:processor-limit) 1025))
  (is (<= (os:processor-limit) (os:processor-count))))

(defun quota-with (&rest files)
  "The quota if the kernel's files are FILES, a plist from path to text."
  (clgrpc.os::processor-quota (lambda (path)
                                (loop for (name text) on files by #'cddr
                                      when (string= name path) return text))))

(defun lines (&rest lines)
  (format nil "~{~A~%~}" lines))

(defparameter *second*
  "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
  "Where version 2 is mounted.")

(defparameter *first*
  (lines "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755"
         "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"
         "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:4 - cgroup cgroup rw,cpu,cpuacct")
  "Where version 1 is mounted.")

(test quotas-of-the-second-version
  (flet ((quota (group &rest files)
           (apply #'quota-with "/proc/self/cgroup" (lines (format nil "0::~A" group))
                  "/proc/self/mountinfo" *second* files)))
    (is (null (quota "/")) "no file")
    (is (null (quota "/" "/sys/fs/cgroup/cpu.max" (lines "max 100000"))))
    (is (= 3/2 (quota "/" "/sys/fs/cgroup/cpu.max" (lines "150000 100000"))) "in a container")
    (is (= 1/2 (quota "/a.slice/b" "/sys/fs/cgroup/a.slice/b/cpu.max" (lines "max 100000")
                      "/sys/fs/cgroup/a.slice/cpu.max" (lines "50000 100000")))
        "the quota of a higher group counts")
    (is (= 1/4 (quota "/a/b" "/sys/fs/cgroup/a/b/cpu.max" (lines "25000 100000")
                      "/sys/fs/cgroup/a/cpu.max" (lines "50000 100000")))
        "the least")
    (is (= 2 (quota "/../elsewhere" "/sys/fs/cgroup/cpu.max" (lines "200000 100000"))))
    (dolist (text '("" "max" "1" "x y" "100 0" "-1 100" "100"))
      (is (null (quota "/" "/sys/fs/cgroup/cpu.max" text)) "~S" text))))

(test quotas-of-the-first-version
  (flet ((quota (mounts quota directory)
           (quota-with "/proc/self/cgroup" (lines "9:name=systemd:/" "3:cpuset:/docker/1"
                                                  "4:cpu,cpuacct:/docker/1" "0::/")
                       "/proc/self/mountinfo" mounts
                       (format nil "~A/cpu.cfs_quota_us" directory) (lines quota)
                       (format nil "~A/cpu.cfs_period_us" directory) (lines "100000"))))
    (is (null (quota *first* "-1" "/sys/fs/cgroup/cpu")))
    (is (= 1 (quota *first* "100000" "/sys/fs/cgroup/cpu")) "the quota of the visible root counts")
    (is (= 1 (quota *first* "100000" "/sys/fs/cgroup/cpu/docker")))
    (is (= 1 (quota *first* "100000" "/sys/fs/cgroup/cpu/docker/1")))
    (is (null (quota *first* "100000" "/sys/fs/cgroup/cpu/docker/1/2")) "the group is another's")
    (is (= 1 (quota "32 31 0:29 /docker/1 /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu" "100000"
                    "/sys/fs/cgroup/cpu"))
        "only the group is mounted")))

(test quotas-of-strange-files
  (is (null (quota-with)))
  (dolist (text (list "" ":" "::" "0:" "0::" "a:b" (lines "" "" "0") "- - -" "1 2 3 4 5 - cgroup2"))
    (is (null (quota-with "/proc/self/cgroup" text "/proc/self/mountinfo" text)))
    (is (null (quota-with "/proc/self/cgroup" "0::/" "/proc/self/mountinfo" text)))
    (is (null (quota-with "/proc/self/cgroup" text "/proc/self/mountinfo" *first*)))))
