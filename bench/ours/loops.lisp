;;;; The client of bench/parts/loops.py: several channels, on several event loops or on one. Loaded
;;;; after scripts/load.lisp. Prints `ready`, and for each line on standard input, an s-expression
;;;;
;;;;   (MANNER MAX-CLIENT-LOOPS MILLISECONDS (ADDRESS CORE)…)
;;;;
;;;; a line of JSON. There is a channel for each address. MANNER is
;;;;   :CALLERS   a thread for each channel, held to CORE, which makes one blocking call after the
;;;;              other;
;;;;   :LOOPS     100 calls under way on each channel; each begins the next on its loop when it has
;;;;              ended, so that only the threads that run the loops work.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools/testee")

(defpackage #:clgrpc.bench.loops
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:grpc #:clgrpc) (#:rpc #:clgrpc.rpc) (#:calling #:clgrpc.calling)
                    (#:tools #:clgrpc.tools) (#:load #:clgrpc.load)
                    (#:routeguide #:routeguide)))

(in-package #:clgrpc.bench.loops)

(defconstant +calls-ahead+ 100)

(defun loops-of (channels)
  "The loops of CHANNELS, if there are no other channels: loops are made in the order of channels."
  (let ((loops (reverse (mapcar #'calling::client-loop-loop (calling::client-loops)))))
    (loop for nil in channels
          for i from 0
          collect (nth (mod i (length loops)) loops))))

(defun hold-to-core (core)
  "Make this thread run on CORE only."
  (let ((mask (make-array 128 :element-type '(unsigned-byte 8) :initial-element 0)))
    (setf (ldb (byte 1 (mod core 8)) (aref mask (floor core 8))) 1)
    (sb-sys:with-pinned-objects (mask)
      (assert (zerop (sb-alien:alien-funcall
                      (sb-alien:extern-alien "sched_setaffinity"
                                             (function sb-alien:int sb-alien:int
                                                       sb-alien:unsigned-long
                                                       sb-sys:system-area-pointer))
                      0 128 (sb-sys:vector-sap mask)))))))

(defun call-in-threads (channels cores end)
  "Return how many calls each of CHANNELS has made until END, from a thread on its core, one of
CORES."
  (mapcar #'sb-thread:join-thread
          (loop for channel in channels
                for core in cores
                collect (sb-thread:make-thread
                         (lambda (channel core)
                           (hold-to-core core)
                           (load:histogram-count (clgrpc.testee::call-until end channel)))
                         :arguments (list channel core)))))

(defun call-on-loops (channels cores end)
  "Return how many calls each of CHANNELS has made until END."
  (declare (ignore cores))
  (let ((over (sb-thread:make-semaphore)))
    (flet ((start (channel loop)
             (let ((count 0) (under-way +calls-ahead+))
               (declare (type fixnum count under-way))
               (labels ((begin ()
                          (grpc:on-end (grpc:call-async #'routeguide.route-guide:get-feature
                                                        channel clgrpc.testee::*bench-point*)
                                       #'ended))
                        (ended ()
                          (incf count)
                          (cond ((< (monotonic-ns) end) (begin))
                                ((zerop (decf under-way))
                                 (sb-thread:signal-semaphore over)))))
                 (clgrpc.loop:post loop (lambda () (loop repeat +calls-ahead+ do (begin))))
                 (lambda () count)))))
      (let ((counts (mapcar #'start channels (loops-of channels))))
        (sb-thread:wait-on-semaphore over :n (length channels))
        (mapcar #'funcall counts)))))

(defun measure (manner max-client-loops milliseconds &rest places)
  (let ((channels (loop for (address) in places
                        collect (grpc:make-channel address :max-client-loops max-client-loops)))
        (cores (mapcar #'second places))
        (function (ecase manner
                    (:callers #'call-in-threads)
                    (:loops #'call-on-loops))))
    (unwind-protect
         (flet ((run (milliseconds)
                  (funcall function channels cores (+ (monotonic-ns) (* 1000000 milliseconds)))))
           (mapc #'grpc:ensure-connected channels)
           (run 300)
           (sb-ext:gc)
           (format t "begun~%")
           (finish-output)
           (let* ((cpu (get-internal-run-time))
                  (begin (monotonic-ns))
                  (counts (run milliseconds))
                  (seconds (ns-seconds (- (monotonic-ns) begin)))
                  (cpu-seconds (/ (- (get-internal-run-time) cpu)
                                  (float internal-time-units-per-second 1d0))))
             (format t "{\"calls\":[~{~D~^,~}],\"seconds\":~,6F,\"cpu_seconds\":~,6F}~%"
                     counts seconds cpu-seconds)
             (finish-output)))
      (mapc #'grpc:close-channel channels))))

(grpc:tune-collector)
(format t "ready~%")
(finish-output)
(loop for line = (read-line *standard-input* nil)
      while line
      do (apply #'measure (let ((*package* (find-package '#:clgrpc.bench.loops))
                                (*read-eval* nil))
                            (read-from-string line))))
