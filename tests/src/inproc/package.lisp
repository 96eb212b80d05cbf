;;;; Tests of calls within the image only; tests for all transports are in tests/whole/transports.

(defpackage #:clgrpc.tests.inproc
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.tests.form #:clgrpc.tests.server)
  (:local-nicknames (#:grpc #:clgrpc) (#:inproc #:clgrpc.inproc) (#:rpc #:clgrpc.rpc)
                    (#:serving #:clgrpc.serving) (#:method #:clgrpc.method)
                    (#:loop #:clgrpc.loop) (#:calling #:clgrpc.calling))
  (:import-from #:clgrpc.tests.server
                #:call-with-threads
                #:double #:count-up #:add-up #:echo #:double-later #:count-up-reactively
                #:add-up-reactively #:echo-reactively #:check-four-kinds))

(in-package #:clgrpc.tests.inproc)

(def-suite :clgrpc.inproc :description "Calls within the image.")

(defun call-with-channel-to-probe (function handlers server-options channel-options)
  (with-started (server (apply #'start-probe handlers
                               :listen (format nil "inproc:~A" (gensym "PROBE")) server-options)
                 :drain 5)
    (let ((channel (apply #'grpc:server-channel server channel-options)))
      (unwind-protect (funcall function channel server)
        (grpc:close-channel channel)))))

(defmacro with-inproc ((channel &key (server (gensym "SERVER")) options channel-options events)
                       (&rest handlers)
                       &body body)
  "As WITH-PROBE, with CHANNEL within the image."
  `(with-log ,events
     (call-with-channel-to-probe (lambda (,channel ,server)
                                   (declare (ignorable ,channel ,server))
                                   ,@body)
                                 (list ,@handlers) ,options ,channel-options)))

(defun status-of-error (error)
  (and error (grpc:rpc-error-status error)))

(defun this-thread-p (thread) (eq sb-thread:*current-thread* thread))

(defparameter *retrying*
  '(:service-config
    (:method-config ((:name (())
                      :retry-policy (:max-attempts 3 :initial-backoff 0.01 :max-backoff 0.02
                                     :backoff-multiplier 2
                                     :retryable-status-codes (:unavailable))))))
  "Keywords of a channel that retries all its calls.")

(defclass promised-credentials (grpc:call-credentials)
  ((future :initarg :future)))

(defmethod grpc:get-request-metadata ((credentials promised-credentials) request)
  (declare (ignore request))
  (slot-value credentials 'future))

(defun call-promised (channel future &rest options)
  "Call Ask on CHANNEL, without waiting, with the call credentials that FUTURE will have."
  (apply #'grpc:call-async #'lab.bench:ask channel (note 1)
         :call-credentials (make-instance 'promised-credentials :future future) options))
