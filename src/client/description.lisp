;;;; The description of a channel, which DESCRIBE prints for people and CHANNEL-ADDRESSES returns as
;;;; plists. The description is read on the channel's loop, so that all of it belongs to one moment.
;;;; The description needs no counters that would cost each call time: the number of picks of a
;;;; server is the number of its streams.

(in-package #:clgrpc.client)

;;; Facts of balancers

(defgeneric balancer-facts (balancer)
  (:documentation "A plist that describes BALANCER for people, with values that print well;
:CHILDREN is a list of such plists of its children, if it has any. Call this on the loop of
BALANCER's channel.")
  (:method ((balancer balancer)) '()))

(defgeneric subchannel-facts (balancer subchannel)
  (:documentation "A plist of BALANCER's data about SUBCHANNEL, such as a weight, for people.
SUBCHANNEL belongs to BALANCER or to one of its children. On its channel's loop.")
  (:method (balancer subchannel)
    (declare (ignore balancer subchannel))
    '()))

(defun balancer-name (balancer)
  "The name of BALANCER's policy, for people, in the manner of service configs."
  (substitute #\_ #\- (string-downcase (class-name (class-of balancer)))))

(defmethod balancer-facts ((balancer switch))
  (flet ((facts (child) (list* :policy (balancer-name child) (balancer-facts child))))
    (append (when (switch-child balancer) (facts (switch-child balancer)))
            (when (switch-next balancer) (list :next (facts (switch-next balancer)))))))

;;; Addresses

(defun seconds-to-attempt (subchannel)
  "The seconds until SUBCHANNEL's next attempt to connect, or nil if it does not wait for one."
  (let* ((connection-set (subchannel-connection-set subchannel))
         (timer (back-off-timer (connection-set-back-off connection-set))))
    (and timer
         (max 0d0 (float (ns-seconds (- (timer-due-ns timer)
                                        (loop:read-clock (connection-set-loop connection-set))))
                         1d0)))))

(defun describe-address (subchannel)
  "See CHANNEL-ADDRESSES."
  (let ((connection-set (subchannel-connection-set subchannel))
        (wait (seconds-to-attempt subchannel))
        (more (let ((facts (subchannel-facts (subchannel-balancer subchannel) subchannel)))
                (map-ancestors (lambda (ancestor)
                                 (setf facts (append facts (subchannel-facts ancestor subchannel))))
                               (subchannel-balancer subchannel))
                facts)))
    (append (list :address (server-text subchannel)
                  :state (subchannel-state subchannel)
                  :connections (if (eq :shutdown (subchannel-link-state subchannel))
                                   0
                                   (length (connection-set-links connection-set)))
                  :calls (subchannel-open-calls subchannel)
                  :picks (subchannel-picks subchannel)
                  :failures (subchannel-failures subchannel)
                  :failed-connects (connection-set-failed-connects connection-set))
            (when (connection-set-pool connection-set)
              (list :shared-by (length (remove-duplicates
                                        (mapcar #'subchannel-core
                                                (connection-set-owners connection-set))))))
            (unless (member (subchannel-state subchannel) '(:ready :shutdown))
              (let ((text (or (loop for veto in (subchannel-vetoes subchannel)
                                    when (eq :ready (subchannel-link-state subchannel))
                                      return (veto-text veto))
                              (connection-set-failure connection-set))))
                (when text (list :last-error text))))
            (when wait (list :next-attempt wait))
            (when (subchannel-breaker subchannel)
              (list :breaker (breaker-state (subchannel-breaker subchannel))))
            (when (subchannel-attributes subchannel)
              (list :attributes (subchannel-attributes subchannel)))
            more)))

;;; Channels

(defun describe-core (core)
  "A plist that describes CORE's channel, without its addresses."
  (append (list :target (core-name core) :state (core-state core))
          (balancer-facts (core-balancer core))
          (let ((picker (core-picker core)))
            (typecase picker
              (picker (list :picker (picker-text picker)))
              (failure (list :last-error (failure-text picker)))))
          (when (core-throttle core)
            (list :retry-tokens (nth-value 1 (throttled-p (core-throttle core)))))
          (list :waiting (stream-queue-count (core-stream-queue core)))))

(defun look-at (core function)
  "The value of FUNCTION, called on the loop of CORE; or on this thread, if the loop has stopped or
does not answer."
  (declare (type function function))
  (flet ((look-here (reason)
           (declare (ignore reason))
           (funcall function)))
    (if (core-open core)
        (loop:call-and-wait (core-loop core) function 10 #'look-here)
        (look-here :closed))))

(defmethod channel-addresses ((channel wire-channel))
  (let ((core (channel-core channel)))
    (values-list (look-at core (lambda ()
                                 (list (mapcar #'describe-address
                                               (reverse (core-subchannels core)))
                                       (describe-core core)))))))

(defun address-line (facts)
  "FACTS, a plist that DESCRIBE-ADDRESS returns, for people."
  (destructuring-bind (&key address state connections calls picks failures failed-connects
                         last-error next-attempt attributes shared-by &allow-other-keys)
      facts
    (let ((*print-pretty* nil)
          (known '(:address :state :connections :calls :picks :failures :failed-connects :last-error
                   :next-attempt :attributes :shared-by)))
      (format nil "~A ~(~A~), ~D connection~:P~@[ shared by ~D channel~:P~], ~D call~:P, ~
                   ~D picked, ~D failed~
                   ~[~:;, ~:*~D attempt~:P to connect failed~]~@[, the next in ~,1F s~]~
                   ~@[: ~A~]~@[ ~S~]~@[ ~S~]"
              address state connections shared-by calls picks failures failed-connects
              next-attempt last-error attributes
              (loop for (name value) on facts by #'cddr
                    unless (member name known) append (list name value))))))

(defun write-policy (facts stream indentation)
  "Write the entries of FACTS, a plist of BALANCER-FACTS, for the policy and its children."
  (format stream "~&~vT~A~@[ ~S~]~%" indentation (getf facts :policy)
          (alexandria:remove-from-plist facts :policy :children :next))
  (dolist (child (getf facts :children)) (write-policy child stream (+ indentation 2)))
  (when (getf facts :next)
    (format stream "~&~vTto be followed by~%" indentation)
    (write-policy (getf facts :next) stream (+ indentation 2))))

(defmethod describe-object ((channel wire-channel) stream)
  (multiple-value-bind (addresses facts) (channel-addresses channel)
    (destructuring-bind (&key target state picker last-error waiting retry-tokens &allow-other-keys)
        facts
      (format stream "~&~S~%  a channel to ~A, ~(~A~)~@[: ~A~]~@[: ~A~], ~D call~:P waiting~
                      ~@[, ~,3F tokens left for retries~]~%"
              channel target state picker last-error waiting retry-tokens)
      (write-policy (alexandria:remove-from-plist facts :target :state :picker :last-error :waiting
                                                        :retry-tokens)
                    stream 2)
      (if addresses
          (format stream "~{  ~A~%~}" (mapcar #'address-line addresses))
          (format stream "  no addresses yet~%")))))
