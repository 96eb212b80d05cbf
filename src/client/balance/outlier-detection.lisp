;;;; The policy outlier_detection (gRFC A50): a child policy balances. A server is ejected if its
;;;; calls fail much more often than those of other servers, or more often than a threshold: its
;;;; subchannels count as failed for a while. Each further ejection of the server lasts longer.
;;;;
;;;; After each interval one or both of these algorithms examine the calls that ended in it:
;;;;
;;;;   success rate        ejects a server whose rate is under mean - stdevFactor/1000 · deviation
;;;;                       of the rates of all servers with enough calls
;;;;   failure percentage  ejects a server if more than threshold per cent of its calls have failed
;;;;
;;;; At most maxEjectionPercent of the servers are ejected, or one more, as in other
;;;; implementations. An ejection lasts baseEjectionTime times the server's count of ejections, at
;;;; most the larger of maxEjectionTime and baseEjectionTime. Each interval without an ejection
;;;; subtracts one from a server's count of ejections. A call that the client cancels does not
;;;; count; a call that the server has answered with CANCELLED has failed. A subchannel without the
;;;; key of a backend, such as pick_first's, is not examined.

(in-package #:clgrpc.balance)

(defstruct (algorithm (:copier nil))
  "The config of one of the two algorithms."
  (factor 0 :type (integer 0) :read-only t) ; stdevFactor, or threshold in per cent
  ;; the chance that the algorithm ejects, in per cent
  (enforcement 100 :type (integer 0 100) :read-only t)
  (hosts 5 :type (integer 0) :read-only t) ; servers with VOLUME calls needed to judge
  (volume 0 :type (integer 0) :read-only t)) ; a server with fewer is not judged

(defstruct (detection (:copier nil))
  "The config of outlier_detection. Times are in nanoseconds."
  (interval-ns 0 :type nanoseconds :read-only t) ; the time between two examinations
  (base-ns 0 :type nanoseconds :read-only t) ; how long the first ejection lasts
  (most-ns 0 :type nanoseconds :read-only t) ; the longest ejection
  ;; at most this percentage of the servers may be ejected
  (most-percent 10 :type (integer 0 100) :read-only t)
  (success-rate nil :type (or null algorithm) :read-only t) ; nil if this algorithm is not used
  ;; nil if this algorithm is not used
  (failure-percentage nil :type (or null algorithm) :read-only t)
  (child nil :type config:policy-config :read-only t)) ; the child's policy

(defun percent-field (object name path default)
  "The field NAME of OBJECT at PATH, a percentage, or DEFAULT."
  (config:integer-field object name path :default default :maximum 100))

(defun parse-algorithm (object name path factor default-factor most-factor default-volume)
  "The ALGORITHM in the field NAME of OBJECT; nil if OBJECT lacks the field."
  (multiple-value-bind (object present) (config:object-field object name path)
    (when present
      (let ((path (config:member-path path name)))
        (make-algorithm
         :factor (config:integer-field object factor path :default default-factor
                                                          :maximum most-factor)
         :enforcement (percent-field object "enforcementPercentage" path 100)
         :hosts (config:integer-field object "minimumHosts" path :default 5)
         :volume (config:integer-field object "requestVolume" path :default default-volume))))))

(defun parse-detection (object path)
  (flet ((ns (name default &optional (least 0))
           (config:duration-field object name path :default default :least least)))
    (let ((base-ns (ns "baseEjectionTime" (seconds-ns 30))))
      (make-detection
       :interval-ns (ns "interval" (seconds-ns 10) +least-period-ns+)
       :base-ns base-ns
       :most-ns (max base-ns (ns "maxEjectionTime" (seconds-ns 300)))
       :most-percent (percent-field object "maxEjectionPercent" path 10)
       :success-rate (parse-algorithm object "successRateEjection" path "stdevFactor" 1900
                                      (1- (expt 2 32)) 100)
       :failure-percentage (parse-algorithm object "failurePercentageEjection" path
                                            "threshold" 85 100 50)
       :child (child-field object "childPolicy" path)))))

(defun detecting-p (detection)
  (or (detection-success-rate detection) (detection-failure-percentage detection)))

(defstruct (endpoint (:copier nil))
  "A server, with the counts of its calls and its ejection."
  (successes 0 :type (integer 0))       ; calls since the last examination
  (failures 0 :type (integer 0))        ; likewise
  (ejected-ns nil :type (or null nanoseconds)) ; when the server was ejected, or nil if it is not
  (multiplier 0 :type (integer 0))      ; ejections, less the intervals without
  (subchannels '() :type list))         ; the subchannels to the server

(defun endpoint-volume (endpoint)
  "The calls to ENDPOINT that have ended since the last examination."
  (+ (endpoint-successes endpoint) (endpoint-failures endpoint)))

(defun endpoint-success-rate (endpoint)
  (/ (endpoint-successes endpoint) (endpoint-volume endpoint)))

(defclass outlier-detection (wrapper)
  ((detection :initform nil :accessor detection
              :documentation "Its config.")
   (endpoints :initform (make-hash-table :test #'equal) :reader detection-endpoints
              :documentation "From a backend's key to its ENDPOINT.")
   (ejected :initform 0 :accessor detection-ejected
            :documentation "The number of endpoints that are ejected.")
   (timer :initform nil :accessor detection-timer
          :documentation "The timer of the next examination.")
   (since-ns :initform nil :accessor detection-since-ns
             :documentation "The time of the last examination, or nil while none is planned."))
  (:documentation "The policy outlier_detection_experimental."))

(config:register-policy :outlier-detection
                        '("outlier_detection_experimental" "outlier_detection")
                        'outlier-detection 'parse-detection)

;;; Servers

(defun update-endpoints (balancer backends)
  (let ((endpoints (detection-endpoints balancer))
        (kept (make-hash-table :test #'equal)))
    (dolist (backend backends)
      (let ((key (backend-key backend)))
        (setf (gethash key kept) t)
        (unless (gethash key endpoints)
          (setf (gethash key endpoints) (make-endpoint)))))
    (loop for key being the hash-keys of endpoints using (hash-value endpoint)
          unless (gethash key kept)
            do (when (endpoint-ejected-ns endpoint) (decf (detection-ejected balancer)))
               (remhash key endpoints))))

(defun endpoint-of (balancer subchannel)
  (gethash (subchannel-key subchannel) (detection-endpoints balancer)))

(defun count-attempt (endpoint call status)
  (cond ((eq :ok status) (incf (endpoint-successes endpoint)))
        ((or (null status) (and (eq :cancelled status) (not (client:cancelled-by-server-p call)))))
        (t (incf (endpoint-failures endpoint)))))

(defmethod subchannel-opened ((ancestor outlier-detection) subchannel)
  (when-let ((endpoint (endpoint-of ancestor subchannel)))
    (push subchannel (endpoint-subchannels endpoint))
    (when (endpoint-ejected-ns endpoint) (veto-ejected subchannel))
    (add-listener subchannel
                  (lambda (call subchannel status trailers)
                    (declare (ignore subchannel trailers))
                    (when (detecting-p (detection ancestor))
                      (count-attempt endpoint call status))))))

(defmethod subchannel-closed ((ancestor outlier-detection) subchannel)
  (when-let ((endpoint (endpoint-of ancestor subchannel)))
    (setf (endpoint-subchannels endpoint)
          (delete subchannel (endpoint-subchannels endpoint)))))

(defun veto-ejected (subchannel)
  (impose-veto subchannel :ejected :transient-failure
               (format nil "~A is ejected: too many calls have failed there"
                       (subchannel-key subchannel))))

(defun eject (balancer endpoint now-ns)
  "Eject ENDPOINT at NOW-NS, unless it is ejected already."
  (unless (endpoint-ejected-ns endpoint)
    (incf (endpoint-multiplier endpoint))
    (incf (detection-ejected balancer))
    (setf (endpoint-ejected-ns endpoint) now-ns)
    (mapc #'veto-ejected (endpoint-subchannels endpoint))))

(defun take-back (balancer endpoint)
  (decf (detection-ejected balancer))
  (setf (endpoint-ejected-ns endpoint) nil)
  (dolist (subchannel (endpoint-subchannels endpoint)) (lift-veto subchannel :ejected)))

;;; Examination

(defun may-eject-p (balancer)
  "True while the number of ejected servers is under maxEjectionPercent."
  (< (* 100 (detection-ejected balancer))
     (* (detection-most-percent (detection balancer))
        (hash-table-count (detection-endpoints balancer)))))

(defun eject-by-chance (balancer algorithm endpoint now-ns)
  (when (< (random 100 (balancer-random balancer)) (algorithm-enforcement algorithm))
    (eject balancer endpoint now-ns)))

(defun judged-endpoints (endpoints algorithm)
  "The ENDPOINTS with enough calls for ALGORITHM; the empty list if ALGORITHM requires more
endpoints."
  (let ((judged (remove-if (lambda (endpoint)
                             (< (endpoint-volume endpoint) (max 1 (algorithm-volume algorithm))))
                           endpoints)))
    (if (< (length judged) (algorithm-hosts algorithm)) '() judged)))

(defun judge-success-rates (balancer algorithm endpoints now-ns)
  "Eject the ENDPOINTS whose success rates are outliers under ALGORITHM."
  (let* ((judged (judged-endpoints endpoints algorithm))
         (count (length judged)))
    (when (plusp count)
      (let* ((rates (mapcar (lambda (endpoint)
                              (coerce (endpoint-success-rate endpoint) 'double-float))
                            judged))
             (mean (/ (reduce #'+ rates) count))
             (deviation (sqrt (/ (reduce #'+ rates :key (lambda (rate) (expt (- rate mean) 2)))
                                 count)))
             (least (- mean (* deviation (/ (algorithm-factor algorithm) 1000)))))
        (loop for endpoint in judged
              for rate in rates
              while (may-eject-p balancer)
              do (when (< rate least)
                   (eject-by-chance balancer algorithm endpoint now-ns)))))))

(defun judge-failure-percentages (balancer algorithm endpoints now-ns)
  "Eject the ENDPOINTS with a higher percentage of failed calls than ALGORITHM allows."
  (let ((judged (judged-endpoints endpoints algorithm)))
    (loop for endpoint in judged
          while (may-eject-p balancer)
          do (when (> (* 100 (endpoint-failures endpoint))
                      (* (endpoint-volume endpoint) (algorithm-factor algorithm)))
               (eject-by-chance balancer algorithm endpoint now-ns)))))

(defun forget-calls (endpoint)
  (setf (endpoint-successes endpoint) 0
        (endpoint-failures endpoint) 0))

(defun age-ejection (balancer endpoint now-ns)
  "Count another interval for ENDPOINT, which may end its ejection."
  (let ((detection (detection balancer))
        (since-ns (endpoint-ejected-ns endpoint)))
    (cond ((null since-ns)
           (when (plusp (endpoint-multiplier endpoint)) (decf (endpoint-multiplier endpoint))))
          ((> now-ns (+ since-ns (min (* (detection-base-ns detection)
                                         (endpoint-multiplier endpoint))
                                      (detection-most-ns detection))))
           (take-back balancer endpoint)))))

(defun look-for-outliers (balancer)
  "Examine the calls of the interval that is over, and plan the next examination."
  (let* ((now-ns (balancer-now balancer))
         (detection (detection balancer))
         (endpoints (alexandria:hash-table-values (detection-endpoints balancer))))
    ;; first, since an ejection may be the end of BALANCER
    (setf (detection-since-ns balancer) now-ns)
    (plan-look balancer (detection-interval-ns detection))
    (when (detection-success-rate detection)
      (judge-success-rates balancer (detection-success-rate detection) endpoints now-ns))
    (when (detection-failure-percentage detection)
      (judge-failure-percentages balancer (detection-failure-percentage detection) endpoints
                                 now-ns))
    (mapc #'forget-calls endpoints)
    (dolist (endpoint endpoints) (age-ejection balancer endpoint now-ns))))

(defun plan-look (balancer ns)
  "Look for outliers in NS nanoseconds, not at the time planned before."
  (stop-policy-timer balancer (detection-timer balancer))
  (setf (detection-timer balancer) (start-policy-timer balancer (max 0 ns) #'look-for-outliers)))

(defun begin-looking (balancer)
  "Plan the next examination of BALANCER, whose config, perhaps a new one, has an algorithm."
  (let ((interval-ns (detection-interval-ns (detection balancer)))
        (since-ns (detection-since-ns balancer))
        (now-ns (balancer-now balancer)))
    (cond (since-ns (plan-look balancer (- interval-ns (- now-ns since-ns))))
          (t (setf (detection-since-ns balancer) now-ns)
             (loop for endpoint being the hash-values of (detection-endpoints balancer)
                   do (forget-calls endpoint))
             (plan-look balancer interval-ns)))))

(defun end-looking (balancer)
  "End the examinations of BALANCER, because its new config has no algorithm."
  (stop-policy-timer balancer (shiftf (detection-timer balancer) nil))
  (setf (detection-since-ns balancer) nil)
  (loop for endpoint being the hash-values of (detection-endpoints balancer)
        do (when (endpoint-ejected-ns endpoint) (take-back balancer endpoint))
           (setf (endpoint-multiplier endpoint) 0)))

(defmethod update-backends ((balancer outlier-detection) backends config)
  (setf (detection balancer) config)
  (update-endpoints balancer backends)
  (if (detecting-p config) (begin-looking balancer) (end-looking balancer))
  (update-backends (wrapper-child balancer) backends (detection-child config)))

(defmethod close-balancer :after ((balancer outlier-detection))
  (stop-policy-timer balancer (shiftf (detection-timer balancer) nil)))

(defmethod client:balancer-facts ((balancer outlier-detection))
  (list* :ejected (detection-ejected balancer) (call-next-method)))

(defmethod client:subchannel-facts ((balancer outlier-detection) subchannel)
  (let ((endpoint (endpoint-of balancer subchannel)))
    (when (and endpoint (endpoint-ejected-ns endpoint)) '(:ejected t))))
