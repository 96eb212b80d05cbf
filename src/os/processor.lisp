;;;; How many processors this process may run on: sched_getaffinity(2), which knows of taskset and
;;;; of the cpusets of containers.

(in-package #:clgrpc.os)

(defconstant +affinity-octets+ 128
  "Room for 1024 processors, as in the C library's cpu_set_t.")

(defun processor-count ()
  "Return how many processors this thread may run on, 1 if the kernel does not say."
  (let ((mask (make-octets +affinity-octets+)))
    (let ((length (with-pinned-objects (mask)
                    (syscall ("sched_getaffinity" int) (int 0)
                             ((unsigned 64) +affinity-octets+)
                             (system-area-pointer (vector-sap mask))))))
      (if (failed-p length)
          1
          (max 1 (reduce #'+ mask :key #'logcount))))))
