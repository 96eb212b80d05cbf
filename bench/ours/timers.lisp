;;;; Many workflows that wait for one moment, for the part capacity. Loaded after scripts/load.lisp
;;;; by bench/parts/capacity.py. Prints "ready" and then answers each line of standard input, a JSON
;;;; object, with one: by its `do`
;;;;
;;;; - `start` starts `count` workflows at the nodes `addresses`, whose store is `etcd`, that wait
;;;;   until one moment, and returns that moment (`due`, seconds since 1970);
;;;; - `await` waits until `count` have completed, and returns the seconds from the moment until
;;;;   then (`late`).

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc")
(load-strictly "clgrpc-cluster/workflow")

(defpackage #:clgrpc.bench.timers
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:base #:clgrpc.base) (#:etcd #:clgrpc.etcd)
                    (#:workflow #:clgrpc.workflow)))

(in-package #:clgrpc.bench.timers)

(defconstant +callers+ 24 "How many threads start workflows at once.")
(defconstant +starts-per-second+ 400
  "The least number of workflows started a second, from which the moment is computed.")

(defvar *etcd* nil "A client of the store.")
(defvar *due* 0 "The moment, in seconds since 1970.")

(defun now () (/ (base:real-time-ns) 1d9))

(defun start (addresses endpoint count)
  (let ((channels (map 'vector #'grpc:make-channel addresses))
        (due (+ (now) 3 (/ count +starts-per-second+)))
        (next -1) (lock (sb-thread:make-mutex)))
    (setf *etcd* (etcd:make-etcd endpoint)
          *due* due)
    (mapc #'sb-thread:join-thread
          (loop repeat +callers+
                collect (sb-thread:make-thread
                         (lambda ()
                           (loop for i = (sb-thread:with-mutex (lock) (incf next))
                                 while (< i count)
                                 do (workflow:start-workflow
                                     (svref channels (mod i (length channels)))
                                     (format nil "w~6,'0D" i) `((:until ,(rational due)))
                                     :call-timeout 60))))))
    (when (< due (now)) (error "The workflows were started too late."))
    `(("due" . ,due))))

(defun await (count)
  (loop until (= count (etcd:count-entries *etcd*
                                           :prefix "clgrpc/workflows/default/by/completed/"))
        do (sleep 1/20))
  `(("late" . ,(- (now) *due*))))

(defun answer (request)
  (flet ((field (name) (cdr (assoc name request :test #'string=))))
    (if (string= "start" (field "do"))
        (start (field "addresses") (field "etcd") (field "count"))
        (await (field "count")))))

(format t "ready~%")
(finish-output)
(loop for line = (read-line *standard-input* nil)
      while line
      do (format t "~A~%" (base:write-json (answer (base:parse-json line))))
         (finish-output))
(clgrpc.scripts:quit 0)
