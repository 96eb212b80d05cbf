;;;; A channel without sockets or threads; the test runs its loop and sets its time.

(in-package #:clgrpc.tests.balance)

(defun parse (json)
  "The POLICY-CONFIG of JSON, a loadBalancingConfig."
  (config:parse-balancing (parse-json json) "loadBalancingConfig"))

(defun backend (number &rest attributes)
  (client::parse-backend (list* (address number) attributes)))

(defun address (number)
  (format nil "127.~D.~D.1:~D" (floor number 250) (mod number 250) (1+ number)))

(defun switch-of (core)
  "The balancer of CORE's channel, which begins and ends policies."
  (client::core-balancer core))

(defun policy-of (core)
  "The policy in force in CORE's channel."
  (client::switch-child (switch-of core)))

(defun update (core json &rest backends)
  "Let CORE balance BACKENDS, numbers or backends, by JSON, a config."
  (client:update-backends (switch-of core)
                          (mapcar (lambda (item) (if (integerp item) (backend item) item)) backends)
                          (parse json))
  (settle core))

(defun settle (core)
  "Run the deferred functions."
  (loop::deferred-phase (client:core-loop core)))

(defun elapse (core seconds)
  "Let SECONDS pass, a quarter of a second at a time."
  (let ((loop (client:core-loop core)))
    (loop repeat (ceiling seconds 1/4)
          do (incf (loop:event-loop-now loop) (seconds-ns 1/4))
             (advance-wheel (loop:event-loop-wheel loop) (loop:event-loop-now loop))
             (settle core))))

(defun member-to (core number)
  "The subchannel in use for the server NUMBER."
  (find-if (lambda (subchannel)
             (and (string= (address number) (client:subchannel-key subchannel))
                  (not (eq :shutdown (client:subchannel-state subchannel)))))
           (client:core-subchannels core)))

(defun live (core)
  "The subchannels in use."
  (remove :shutdown (client:core-subchannels core) :key #'client:subchannel-state))

(defun come-to (state subchannel)
  "Change the state of SUBCHANNEL's links to STATE."
  (client::change-state (client:subchannel-connection-set subchannel) state))

(defun bring (core state &rest numbers)
  "Change the state of the links of the servers NUMBERS to STATE."
  (dolist (number numbers)
    (let ((subchannel (member-to core number)))
      (if (eq state :transient-failure)
          (client::wait-for-better-times (client:subchannel-connection-set subchannel)
                                         (format nil "~D is down" number))
          (come-to state subchannel))))
  (settle core))

(defun state (core)
  (client:core-state core))

(defun pick (core &optional call)
  "The pick of CORE's picker for CALL."
  (let ((picker (client::core-picker core)))
    (if (client:picker-p picker)
        (funcall (client:picker-function picker) call)
        picker)))

(defun make-room (core subchannels)
  "Give each of SUBCHANNELS a link that has room for calls and no socket."
  (let ((http2 (clgrpc.http2:make-connection :client client::**client-sink**
                                             (client:core-options core))))
    (dolist (subchannel subchannels)
      (let ((link (client::make-client-link (client:core-loop core) (client:core-options core)
                                            subchannel)))
        (setf (clgrpc.wire::link-http2 link) http2
              (client::connection-set-links (client:subchannel-connection-set subchannel))
              (list link))))))

(defun remove-room (subchannel)
  "Remove the links of SUBCHANNEL."
  (setf (client::connection-set-links (client:subchannel-connection-set subchannel)) '()))

(defun tally (core count &optional call)
  "An alist from the key of a subchannel to how many of COUNT picks were for it."
  (let ((table (make-hash-table :test #'equal)))
    (loop repeat count
          do (let ((picked (pick core call)))
               (incf (gethash (if (client:subchannel-p picked)
                                  (client:subchannel-key picked)
                                  picked)
                              table 0))))
    (alexandria:hash-table-alist table)))

(defun picks (core number tally)
  (declare (ignore core))
  (or (cdr (assoc (address number) tally :test #'equal)) 0))

(defun within-p (share whole part)
  "True if PART is SHARE of WHOLE, within 2 %."
  (<= (* 0.98 share) (/ part whole) (* 1.02 share)))

(defmacro with-core ((core) &body body)
  `(tests:with-core (,core puppet :pick-first :options (:max-subchannels 100000))
     (declare (ignorable puppet))
     (setf (client:core-state ,core) :connecting)
     (unwind-protect (progn ,@body)
       (mapc #'remove-room (client:core-subchannels ,core)))))

(defun call-with-key (core &rest values)
  "A call of CORE's with a header x-key for each of VALUES."
  (let ((call (client::make-client-call :endpoint core
                                        :operations client::**single-operations**)))
    (setf (clgrpc.rpc:outgoing-metadata call)
          (loop for value in values collect (cons "x-key" value)))
    call))

(defun end-calls (subchannel status count
                  &optional (call (client::make-client-call
                                   :endpoint (client:subchannel-core subchannel)
                                   :operations client::**single-operations**)))
  "Report the end of COUNT attempts of CALL on SUBCHANNEL with STATUS."
  (loop repeat count
        do (funcall (client::subchannel-listener subchannel) call subchannel status nil)))

(defun config-error-path (json)
  "The path of the error in JSON, or nil."
  (handler-case (progn (parse json) nil)
    (config:service-config-error (error) (config:service-config-error-path error))))
