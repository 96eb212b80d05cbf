;;;; The policy weighted_round_robin (gRFC A58): the ready servers get calls in proportion to their
;;;; weights. A weight is the calls per second that a server reports divided by its utilization, the
;;;; application's or else the processor's. Reports come with the trailers of calls, or out of band
;;;; (load-report.lisp). Errors count as utilization by errorUtilizationPenalty.
;;;;
;;;; A weight counts from blackoutPeriod after its server's first report until
;;;; weightExpirationPeriod after the last. At other times the server has the mean of the other
;;;; weights. With fewer than two weights, the resolver's weights are used (the attribute :weight,
;;;; as clgrpc.discovery sets it), an addition to the gRFC. Without load reports the servers get
;;;; calls in turn. The weights are renewed each weightUpdatePeriod.

(in-package #:clgrpc.balance)

(defstruct (weighting (:copier nil))
  "The config of weighted_round_robin. Times are in nanoseconds."
  (out-of-band nil :type boolean :read-only t) ; servers send reports on streams
  (interval-ns 0 :type nanoseconds :read-only t) ; the time between two out-of-band reports
  ;; time from the first report until the weight counts
  (blackout-ns 0 :type nanoseconds :read-only t)
  ;; time from the last report until the weight expires
  (expiration-ns 0 :type nanoseconds :read-only t)
  (update-ns 0 :type nanoseconds :read-only t) ; the time between two renewals of the weights
  ;; the utilization added by an error per call
  (penalty 1d0 :type (double-float 0d0 #.+most-load+) :read-only t))

(defun parse-weighting (object path)
  (flet ((ns (name default &optional (least 0))
           (config:duration-field object name path :default (seconds-ns default) :least least)))
    (make-weighting
     :out-of-band (config:boolean-field object "enableOobLoadReport" path)
     :interval-ns (ns "oobReportingPeriod" 10 +least-period-ns+)
     :blackout-ns (ns "blackoutPeriod" 10)
     :expiration-ns (ns "weightExpirationPeriod" 180)
     :update-ns (ns "weightUpdatePeriod" 1 +least-period-ns+)
     :penalty (rational-double (config:number-field object "errorUtilizationPenalty" path
                                                    :default 1 :minimum 0
                                                    :most (rational +most-load+))))))

(defstruct (weighted-note (:include member-note) (:conc-name note-) (:copier nil))
  "The data of the policy about a server."
  (weight 0d0 :type double-float)       ; the weight that the last report gives
  (first-ns nil :type (or null nanoseconds)) ; the time of the first report that counts
  (last-ns nil :type (or null nanoseconds)) ; the time of the last report
  (load nil :type (or null backend-stream))) ; the stream of its server's load reports, or nil

(defclass weighted-round-robin (leaf-policy)
  ((weighting :accessor weighting
              :documentation "Its config.")
   (ready :initform #() :accessor weighted-ready
          :documentation "The members among which the picker picks.")
   (stride :initform nil :accessor weighted-stride
           :documentation "The STRIDE by which the picker picks, or nil to pick in turn.")
   (timer :initform nil :accessor weighted-timer
          :documentation "The timer of the next renewal of the weights."))
  (:documentation "The policy weighted_round_robin."))

(config:register-policy :weighted-round-robin
                        '("weighted_round_robin" "weighted_round_robin_experimental")
                        'weighted-round-robin 'parse-weighting)

;;; Reports

(defun note-report (note report weighting now-ns)
  "Note REPORT of NOTE's server, received at NOW-NS."
  (when-let ((weight (report-weight report (weighting-penalty weighting))))
    (setf (note-weight note) weight
          (note-last-ns note) now-ns)
    (unless (note-first-ns note) (setf (note-first-ns note) now-ns))))

(defun weight-now (note weighting now-ns)
  "The weight of the server of NOTE, or 0 while it has no weight that counts."
  (let ((first-ns (note-first-ns note))
        (last-ns (note-last-ns note))
        (blackout-ns (weighting-blackout-ns weighting)))
    (cond ((null last-ns) 0)
          ((>= (- now-ns last-ns) (weighting-expiration-ns weighting))
           (setf (note-first-ns note) nil) ; after the expiration another blackout begins
           0)
          ((and (plusp blackout-ns)
                (or (null first-ns) (< (- now-ns first-ns) blackout-ns)))
           0)
          (t (note-weight note)))))

(defun watch-load-of (leaf-policy subchannel note)
  "Begin or end the stream of load reports for SUBCHANNEL, whose note is NOTE, according to
LEAF-POLICY's config."
  (let ((backend-stream (shiftf (note-load note) nil)))
    (when backend-stream (end-backend-stream backend-stream)))
  (when (weighting-out-of-band (weighting leaf-policy))
    (setf (note-load note)
          (watch-load subchannel (weighting-interval-ns (weighting leaf-policy))
                      (lambda (report)
                        (note-report note report (weighting leaf-policy)
                                     (balancer-now leaf-policy)))))))

(defmethod make-note ((leaf-policy weighted-round-robin) subchannel)
  (let ((note (make-weighted-note)))
    (add-listener subchannel
                  (lambda (call subchannel status trailers)
                    (declare (ignore call subchannel status))
                    (when (and trailers (not (weighting-out-of-band (weighting leaf-policy))))
                      (when-let ((report (trailers-report trailers)))
                        (note-report note report (weighting leaf-policy)
                                     (balancer-now leaf-policy))))))
    (watch-load-of leaf-policy subchannel note)
    note))

;;; Weights in force

(defmethod configure ((leaf-policy weighted-round-robin) config)
  (let ((before (and (slot-boundp leaf-policy 'weighting) (weighting leaf-policy))))
    (setf (weighting leaf-policy) config)
    (unless (or (null before)
                (and (eq (weighting-out-of-band before) (weighting-out-of-band config))
                     (= (weighting-interval-ns before) (weighting-interval-ns config))))
      (map-members (lambda (subchannel)
                     (watch-load-of leaf-policy subchannel (subchannel-note subchannel)))
                   leaf-policy))))

(defun stale-count (leaf-policy now-ns)
  "How many ready members of LEAF-POLICY have sent no load report for too long."
  (count-if (lambda (subchannel)
              (when-let ((last-ns (note-last-ns (subchannel-note subchannel))))
                (>= (- now-ns last-ns) (weighting-expiration-ns (weighting leaf-policy)))))
            (weighted-ready leaf-policy)))

(defun said-weights (leaf-policy)
  "The weights from the resolver for the ready members of LEAF-POLICY, scaled; nil if fewer than two
are known."
  (flet ((said (subchannel) (or (said-weight (subchannel-attributes subchannel)) 0)))
    (scaled-weights (map 'vector #'said (weighted-ready leaf-policy)))))

(defun look-at-weights (leaf-policy)
  "Update the weights that LEAF-POLICY's picker uses."
  (let* ((now-ns (balancer-now leaf-policy))
         (weighting (weighting leaf-policy))
         (stride (weighted-stride leaf-policy))
         (measured (map 'vector (lambda (subchannel)
                                  (weight-now (subchannel-note subchannel) weighting now-ns))
                        (weighted-ready leaf-policy)))
         (weights (or (scaled-weights measured) (said-weights leaf-policy))))
    (rpc:observe weights-updated (balancer-observer leaf-policy)
                 measured (stale-count leaf-policy now-ns) (null weights))
    (setf (weighted-stride leaf-policy)
          (cond ((null weights) nil)
                ((and stride (= (length weights) (length (stride-weights stride))))
                 (setf (stride-weights stride) weights)
                 stride)
                (t (make-stride weights (random #.(expt 2 32) (balancer-random leaf-policy))))))))

(defun renew-weights-regularly (leaf-policy)
  "Renew the weights each update period while LEAF-POLICY has ready members."
  (stop-policy-timer leaf-policy (shiftf (weighted-timer leaf-policy) nil))
  (when (plusp (length (weighted-ready leaf-policy)))
    ;; the timer is started first, so that an error below does not end it
    (setf (weighted-timer leaf-policy)
          (start-policy-timer leaf-policy (weighting-update-ns (weighting leaf-policy))
                              #'renew-weights-regularly))
    (look-at-weights leaf-policy)))

(defmethod leaf-policy-picker ((leaf-policy weighted-round-robin) ready)
  (declare (type simple-vector ready))
  (setf (weighted-ready leaf-policy) ready
        (weighted-stride leaf-policy) nil)
  (renew-weights-regularly leaf-policy)
  (let ((turns (picker-function (turns-picker ready (first-turn leaf-policy ready)))))
    (new-picker (lambda (call)
                  (let ((stride (weighted-stride leaf-policy)))
                    (if (and stride (= (length ready) (length (stride-weights stride))))
                        (loop repeat (length ready)
                              for subchannel = (svref ready (next-entry stride))
                              when (room-p subchannel call) return subchannel
                              finally (return (funcall turns call)))
                        (funcall turns call))))
                (format nil "by weight, ~D ready" (length ready)))))

(defmethod subchannel-changed :before ((leaf-policy weighted-round-robin) subchannel)
  (when (and (subchannel-note subchannel) (eq :ready (subchannel-state subchannel)))
    ;; earlier reports came over another connection
    (setf (note-first-ns (subchannel-note subchannel)) nil)))

(defmethod review :before ((leaf-policy weighted-round-robin))
  (setf (weighted-ready leaf-policy) #()))

(defmethod client:subchannel-facts ((balancer weighted-round-robin) subchannel)
  (append (list :weight (weight-now (subchannel-note subchannel) (weighting balancer)
                                    (balancer-now balancer)))
          (call-next-method)))

(defmethod close-balancer :after ((leaf-policy weighted-round-robin))
  (stop-policy-timer leaf-policy (shiftf (weighted-timer leaf-policy) nil)))
