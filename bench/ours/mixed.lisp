;;;; The server of bench/parts/mixed.py: grpc.testing.BenchmarkService, and a RouteGuide whose
;;;; GetFeature computes as many microseconds as the latitude of the point says, both on the threads
;;;; that START-SERVER chooses by default. Loaded after scripts/load.lisp; prints `listening on
;;;; HOST:PORT`.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc-tools/testee")

(defpackage #:clgrpc.mixed
  (:use #:cl)
  (:local-nicknames (#:testee #:clgrpc.testee)))

(in-package #:clgrpc.mixed)

(defvar *burned* 0 "So that the compiler must compute it.")

(defun burn (rounds)
  (declare (type (unsigned-byte 62) rounds) (optimize speed))
  (let ((word 88172645463325252))
    (declare (type (unsigned-byte 64) word))
    (flet ((mix (shift)
             (setf word (logxor word (ldb (byte 64 0) (ash word shift))))))
      (declare (inline mix))
      (loop repeat rounds do (mix 13) (mix -7) (mix 17)))
    (setf *burned* (ldb (byte 62 0) word))))

(defparameter *rounds*
  (let ((rounds 20000000) (begin (get-internal-real-time)))
    (burn rounds)
    (floor rounds (/ (- (get-internal-real-time) begin)
                     (/ internal-time-units-per-second 1000000))))
  "Rounds in a microsecond of this processor.")

(defclass route-guide (routeguide:route-guide) ())

(defmethod routeguide.route-guide:get-feature ((service route-guide) point &key)
  (burn (* *rounds* (routeguide:point-latitude point)))
  (routeguide:make-feature :location point))

(clgrpc:tune-collector)
(let ((server (clgrpc:start-server (list (make-instance 'route-guide)
                                         (make-instance 'testee::bench-service)))))
  (format t "listening on ~A~%" (clgrpc:server-address server))
  (finish-output)
  (loop (sleep 3600)))
