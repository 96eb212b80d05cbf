;;;; The allocation of a unary call, in octets and by kind of object. Without a collection between
;;;; them, a histogram of the heap before and one after many calls differ by the calls' allocations;
;;;; the sum by GET-BYTES-CONSED shows whether the histogram is complete. Loaded after
;;;; scripts/load.lisp by bench/parts/allocation.py, in one of two roles:
;;;;
;;;; - With an address in CLGRPC_ADDRESS it calls that server, first blocking, then with futures,
;;;;   and prints a line of JSON for each.
;;;; - Else it serves `bench` and prints `listening on HOST:PORT`; a line on standard input takes
;;;;   the first heap histogram, the next prints a line of JSON with the allocations since.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools/testee")

(defpackage #:clgrpc.allocation
  (:use #:cl)
  (:local-nicknames (#:grpc #:clgrpc) (#:tools #:clgrpc.tools)
                    (#:profile #:clgrpc.profile)))

(in-package #:clgrpc.allocation)

;;; A heap histogram

(defun print-difference (name before after calls consed)
  "Print a line of JSON: the difference of AFTER and BEFORE, per call."
  (format t "{\"name\":~S,\"calls\":~D,\"consed_per_call\":~,1F,\"kinds\":["
          name calls (/ consed calls))
  (let ((comma ""))
    (flet ((print-kind (key entry)
             (destructuring-bind (object octets count) entry
               (destructuring-bind (&optional had (had-octets 0) (had-count 0)) (gethash key before)
                 (declare (ignore had))
                 (let ((more (/ (- octets had-octets) calls)))
                   (when (>= more 1/2)
                     (format t "~A{\"kind\":~S,\"octets\":~,1F,\"objects\":~,2F}" comma
                             (profile:kind-of object) more (/ (- count had-count) calls))
                     (setf comma ",")))))))
      (maphash #'print-kind after)))
  (format t "]}~%")
  (finish-output))

(defun call-with-histograms (name calls-made function)
  "Call FUNCTION between two heap histograms; CALLS-MADE counts the calls so far."
  (declare (type function calls-made function))
  (let* ((before (profile:take-heap-histogram))
         (calls (funcall calls-made))
         (consed (sb-ext:get-bytes-consed))
         (collections sb-kernel::*gc-epoch*))
    (funcall function)
    (let ((consed (- (sb-ext:get-bytes-consed) consed))
          (calls (- (funcall calls-made) calls)))
      (unless (eq collections sb-kernel::*gc-epoch*)
        (error "A garbage collection ran between the histograms."))
      (print-difference name before (profile:take-heap-histogram) (max calls 1) consed))))

;;; Roles

(defun serve ()
  (let ((server (multiple-value-bind (services execution)
                    (tools::offered-services (tools::parse-services "bench"))
                  (grpc:start-server services :execution execution))))
    (format t "listening on ~A~%" (grpc:server-address server))
    (finish-output)
    (when (read-line *standard-input* nil)
      (call-with-histograms "server" (lambda () (getf (grpc:server-statistics server) :calls))
                        #'read-line))))

(defparameter *calls* 10000)

(defun call (address)
  (grpc:with-channel (channel address)
    (flet ((blocking (count)
             (dotimes (i count)
               (routeguide.route-guide:get-feature channel clgrpc.testee::*bench-point*)))
           (ahead (count &aux (futures (make-array 100)))
             (dotimes (i (floor count 100))
               (map-into futures
                         (lambda ()
                           (grpc:call-async #'routeguide.route-guide:get-feature channel
                                            clgrpc.testee::*bench-point*)))
               (map nil #'grpc:await futures))))
      (loop for (name function) in `(("client, blocking" ,#'blocking)
                                     ("client, call-async" ,#'ahead))
            do (let ((calls 0))
                 (funcall function 1000)
                 (call-with-histograms name (lambda () calls)
                                   (lambda () (funcall function *calls*) (incf calls *calls*))))))))

(clgrpc:tune-collector)
(let ((address (uiop:getenv "CLGRPC_ADDRESS")))
  (if address (call address) (serve)))
(clgrpc.scripts:quit 0)
