;;;; The part of the processors that this process may use: the processors on which it may run
;;;; (sched_getaffinity(2), which includes taskset and the cpusets of containers), and the limits on
;;;; their time by control groups (cgroups(7); cpu.max of version 2, cpu.cfs_quota_us of version 1).
;;;; The limit of a group also holds for all groups below it, so all groups are checked from the
;;;; process's group up to the root of the mount.

(in-package #:clgrpc.os)

(defconstant +affinity-octets+ 128
  "The number of octets of a set of 1024 processors, like the C library's cpu_set_t.")

(defun processor-count ()
  "Return the number of processors on which this thread may run, or 1 if that is not known."
  (let ((mask (make-octets +affinity-octets+)))
    (let ((length (with-pinned-objects (mask)
                    (syscall ("sched_getaffinity" int) (int 0)
                             ((unsigned 64) +affinity-octets+)
                             (system-area-pointer (vector-sap mask))))))
      (if (failed-p length)
          1
          (max 1 (reduce #'+ mask :key #'logcount))))))

;;; Control groups

(defun file-text (path)
  "Return the text of the kernel's file at PATH, or nil if it cannot be read."
  (handler-case
      (with-open-file (stream path :external-format :latin-1)
        (with-output-to-string (text)
          (loop for line = (read-line stream nil)
                while line do (write-line line text))))
    ((or file-error stream-error) () nil)))

(defun text-lines (text)
  (remove "" (uiop:split-string (or text "") :separator '(#\Newline)) :test #'string=))

(defun cpu-group (cgroups version)
  "Return the path of the control group, of VERSION 1 or 2, that governs the process's processor
time. CGROUPS is the text of /proc/self/cgroup; return nil if it names no such group."
  (dolist (line (text-lines cgroups))
    (let ((colon (position #\: line)))
      (when colon
        (let ((second (position #\: line :start (1+ colon))))
          (when (and second
                     (if (= 2 version)
                         (string= "0::" line :end2 (min 3 (length line)))
                         (member "cpu" (uiop:split-string (subseq line (1+ colon) second)
                                                          :separator ",")
                                 :test #'string=)))
            (return (subseq line (1+ second)))))))))

(defun cpu-mount (mounts version)
  "Return two values for the mount of the control groups of VERSION, 1 or 2, that limit processor
time: its directory, and the path of the group that this directory shows. Return nil if there is no
such mount. MOUNTS is the text of /proc/self/mountinfo."
  (dolist (line (text-lines mounts))
    (let* ((fields (uiop:split-string line :separator " "))
           (rest (rest (member "-" fields :test #'string=))))
      (when (and (nthcdr 4 fields)
                 (if (= 2 version)
                     (equal "cgroup2" (first rest))
                     (and (equal "cgroup" (first rest))
                          (member "cpu" (uiop:split-string (or (third rest) "") :separator ",")
                                  :test #'string=))))
        (return (values (fifth fields) (fourth fields)))))))

(defun group-directories (directory shown group)
  "Return the directories of GROUP, a path, and of all groups above it. DIRECTORY is the directory
of the group SHOWN. If GROUP is not below SHOWN, as in some containers, return only DIRECTORY."
  (let* ((shown (string-right-trim "/" shown))
         (below (if (and (<= (length shown) (length group))
                         (string= shown group :end2 (length shown)))
                    (remove "" (uiop:split-string (subseq group (length shown)) :separator "/")
                            :test #'string=)
                    '())))
    (cons directory
          (loop for part in (if (member ".." below :test #'string=) '() below)
                for path = (format nil "~A/~A" directory part)
                  then (format nil "~A/~A" path part)
                collect path))))

(defun quotient-of (quota period)
  "Return the number of processors that a limit of QUOTA in each PERIOD, both texts, allows, or nil
if there is no limit."
  (let ((quota (ignore-errors (parse-integer quota)))
        (period (ignore-errors (parse-integer period))))
    (and quota period (plusp quota) (plusp period)
         (/ quota period))))

(defun directory-quota (directory version read)
  "Return the number of processors that the group of DIRECTORY may use, or nil if it has no limit."
  (flet ((text (name) (first (text-lines (funcall read (format nil "~A/~A" directory name))))))
    (if (= 2 version)
        (let ((fields (uiop:split-string (or (text "cpu.max") "") :separator " ")))
          (quotient-of (first fields) (second fields)))
        (quotient-of (text "cpu.cfs_quota_us") (text "cpu.cfs_period_us")))))

(defun processor-quota (&optional (read #'file-text))
  "Return the number of processors, a rational, whose time the control groups of this process allow
it to use, or nil if they set no limit. READ is a function that returns the text of the file at a
path, or nil if it cannot be read."
  (let ((cgroups (funcall read "/proc/self/cgroup"))
        (mounts (funcall read "/proc/self/mountinfo"))
        (least nil))
    (dolist (version '(1 2) least)
      (let ((group (cpu-group cgroups version)))
        (multiple-value-bind (directory shown) (cpu-mount mounts version)
          (when (and group directory)
            (dolist (directory (group-directories directory shown group))
              (let ((quota (directory-quota directory version read)))
                (when quota (setf least (min quota (or least quota))))))))))))

(defun processor-limit ()
  "Return the average number of processors that this process may use at once, a rational that is at
most PROCESSOR-COUNT."
  (let ((count (processor-count)))
    (min count (or (processor-quota) count))))
