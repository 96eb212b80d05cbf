;;;; P1: nothing sleeps per call but the runner and the caller, and nothing runs when nothing is to
;;;; do. P3: system calls per call. P4: octets consed per call.

(in-package #:clgrpc.tests.promise)
(in-suite :clgrpc.promise)

(defun others-switches (process exempt function)
  "How often the threads of PROCESS sleep while FUNCTION runs, but for the EXEMPT ones that sleep
most: the server's runner, whichever thread that is by now, and the caller."
  (let ((before (task-figures process #'voluntary-switches)))
    (funcall function)
    (let ((growths (loop for entry in (task-figures process #'voluntary-switches)
                         collect (growth before (list entry)))))
      (reduce #'+ (nthcdr exempt (sort growths #'>))))))

(test p1-nothing-sleeps-per-call
  (with-probe (channel) (:ask #'double)
    (flet ((calls (count) (dotimes (i count) (ask channel (note i)))))
      (calls 2000)
      (let ((switches (figures-of 5 (lambda ()
                                      (others-switches "self" 2 (lambda () (calls 10000)))))))
        (report "P1: ~{~D~^, ~} voluntary context switches of other threads in 10,000 calls, the ~
                 median under 100"
                switches)
        (is (< (quantile switches 0.5) 100))))))

(test p1-across-processes
  (support:with-server-program (program address (support:testee-program) "serve" "bench"
                                        "--listen" "127.0.0.1:0")
    (let ((process (support:program-pid program)))
      (grpc:with-channel (channel address)
        (flet ((calls (count)
                 (dotimes (i count)
                   (routeguide.route-guide:get-feature
                    channel (routeguide:make-point :latitude 1 :longitude i)))))
          (calls 2000)
          (flet ((switches ()
                   (let* ((ours 0)
                          (theirs (others-switches
                                   process 1
                                   (lambda ()
                                     (setf ours (others-switches "self" 1
                                                                 (lambda () (calls 10000))))))))
                     (report "P1: across processes ~D of the client's and ~D of the server's ~
                              (under 100)"
                             ours theirs)
                     (max ours theirs))))
            (is (< (quantile (figures-of 5 #'switches) 0.5) 100))))))))

(in-suite :clgrpc.promise.idle)

(defun check-idle (process &key settle seconds)
  "No thread of PROCESS runs for SECONDS, once it has had SETTLE seconds to come to rest."
  (pass-time settle)
  (let ((before (task-figures process #'run-time-ns)))
    (pass-time seconds)
    (let ((run (growth before (task-figures process #'run-time-ns))))
      (report "P1: an idle server ran for ~D ns in ~D s (none)" run seconds)
      (is (zerop run)))))

(test p1-nothing-runs-in-an-idle-server
  (support:with-server-program (program address (support:testee-program) "serve" "bench"
                                        "--listen" "127.0.0.1:0")
    (grpc:with-channel (channel address)
      (dotimes (i 2000)
        (routeguide.route-guide:get-feature
         channel (routeguide:make-point :latitude 1 :longitude i))))
    ;; the watchdog dozes off, the connection has ended
    (check-idle (support:program-pid program) :settle 2 :seconds 5)))

(in-suite :clgrpc.promise)

;;; P3

(defparameter *system-calls*
  '(os:wait-for-events os:receive-octets os:send-octets os:write-eventfd
    os:accept-socket os:watch-descriptor os:forget-descriptor os:wake-futex os:wait-for-futex)
  "What the threads of a server do of the kernel's.")

(defun call-counting-system-calls (function)
  "Call FUNCTION with a function that returns how many system calls the server's threads have made.
Looks for events that find none, one after the other, count as one: a loop that waits for the next
burst may spin before it sleeps."
  (let ((count (list 0)) (found nil))
    (dolist (name *system-calls*)
      (let ((look (eq 'os:wait-for-events name)))
        (sb-int:encapsulate name 'count
                            (lambda (original &rest arguments)
                              (let ((result (apply original arguments)))
                                (when (search "clgrpc server" (sb-thread:thread-name
                                                               sb-thread:*current-thread*))
                                  (when (or (shiftf found (not (and look (eql 0 result))))
                                            found)
                                    (sb-ext:atomic-incf (car count))))
                                result)))))
    (unwind-protect (funcall function (lambda () (car count)))
      (dolist (name *system-calls*) (sb-int:unencapsulate name 'count)))))

(defun call-ahead (stub channel request calls in-flight)
  "Make CALLS calls of STUB with IN-FLIGHT of them under way; (REQUEST i) is what to ask."
  (let ((futures (make-array in-flight)))
    (flet ((begin (i)
             (setf (aref futures i) (grpc:call-async stub channel (funcall request i)))))
      (dotimes (i in-flight) (begin i))
      (loop repeat (floor (- calls in-flight) in-flight)
            do (dotimes (i in-flight)
                 (grpc:await (aref futures i))
                 (begin i)))
      (map nil #'grpc:await futures))))

(defun call-in-bursts (stub channel server request calls burst)
  "Make CALLS calls of STUB, BURST at a time: the one loop of SERVER reads none of them before all of
the burst have been sent, so that a slow machine shows the same as a quick one."
  (let ((loop (server:server-loop-loop (first (server:server-loops server)))))
    (loop repeat (floor calls burst)
          do (let ((begun (make-signal)))
               (loop:post loop (lambda () (await-signal begun)))
               (let ((futures (loop for i below burst
                                    collect (grpc:call-async stub channel (funcall request i)))))
                 ;; the second is called in a later turn than that in which they were begun
                 (loop repeat 2
                       do (let ((called (make-signal)))
                            (loop:post (client-loop channel) (lambda () (signal-it called)))
                            (await-signal called)))
                 (signal-it begun)
                 (mapc #'grpc:await futures))))))

(test p3-few-system-calls
  "In the middle one of five rounds: other work on the machine cuts bursts into pieces."
  (with-probe (channel :server server :options '(:execution :inline :loops 1)) (:ask #'double)
    (flet ((calls (count) (call-in-bursts #'lab.bench:ask channel server #'note count 100)))
      (calls 2000)
      (let ((share (call-counting-system-calls
                    (lambda (count)
                      (third (sort (loop repeat 5
                                         collect (let ((before (funcall count)))
                                                   (calls 4000)
                                                   (/ (- (funcall count) before) 4000.0)))
                                   #'<))))))
        (report "P3: ~,3F system calls of the server per call, 100 streams of a connection (under 0.1)"
                share)
        (is (< share 0.1))))))

;;; P4

(defun check-consing (who limit calls function)
  "In most of five rounds the CALLS that FUNCTION makes cons less than LIMIT octets each. How often
threads hand over to each other, which conses, is the machine's choice."
  (let ((octets (figures-of 5 (lambda ()
                                (let ((before (sb-ext:get-bytes-consed)))
                                  (funcall function)
                                  (/ (- (sb-ext:get-bytes-consed) before) calls 1.0))))))
    (report "P4: ~{~,0F~^, ~} octets consed by ~A per call, the median under ~D" octets who limit)
    (is (< (quantile octets 0.5) limit))))

(test p4-octets-per-call
  "Small messages; bench-allocation says what the octets are."
  (support:with-server-program (program address (support:testee-program) "serve" "bench"
                                        "--listen" "127.0.0.1:0")
    (grpc:with-channel (channel address)
      (let ((point (routeguide:make-point :latitude 1 :longitude 2)))
        (flet ((calls ()
                 (dotimes (i 2000) (routeguide.route-guide:get-feature channel point))))
          (calls)
          (check-consing "a blocking client" 280 2000 #'calls))
        (flet ((calls ()
                 (call-ahead #'routeguide.route-guide:get-feature channel (constantly point)
                             2000 100)))
          (calls)
          (check-consing "one with futures" 350 2000 #'calls)))))
  (with-probe (channel) (:ask #'double)
    (let ((notes (note 1)))
      (flet ((calls () (dotimes (i 2000) (ask channel notes))))
        (calls)
        (check-consing "client and server together" 1600 2000 #'calls)))))
