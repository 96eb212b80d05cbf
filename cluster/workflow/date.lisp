;;;; The nodes' date: the common time of all nodes, by which timers are kept. No machine's clock is
;;;; trusted alone: a wrong date would make workflows due, and would delete or fail them, for good.
;;;;
;;;; 1. A node's date advances from its last value with a steady clock, which no program sets.
;;;; 2. Each node reports two dates to the others: the date of its machine, and its value of the
;;;;    nodes' date. Both dates are in the node's entry among the nodes, which ends with its lease.
;;;; 3. A new node takes over the others' value. A node that is alone begins with the date in the
;;;;    store, which the first of the nodes writes there now and then.
;;;; 4. The date is set to the median of the machines' dates. With an even number of machines the
;;;;    nodes' date is set to the nearer of the middle two dates, unless it is between them. So if
;;;;    there are two machines with different dates, neither changes the nodes' date.
;;;; 5. A node that is alone follows its machine's date.
;;;; 6. The date is moved by more than an hour only if the machines ask for the same date during a
;;;;    whole period. The period is ten minutes at a node that is alone, so that its operator can
;;;;    correct the machine's date, and half a minute at a node among others. A node learns other
;;;;    machines' dates late, so the wrong dates of several machines at different times may look
;;;;    like those of a majority.

(in-package #:clgrpc.workflow)

(defconstant +date-slack-ms+ 250
  "The largest difference, in ms, of dates that are treated as equal.")
(defconstant +longest-step-ms+ 3600000
  "The maximum change of the date, in milliseconds, that is made at once.")
(defconstant +lonely-proof-ms+ 600000
  "The time, in ms, after which a node that is alone accepts a date of its machine that differs by
more than +LONGEST-STEP-MS+.")
(defconstant +common-proof-ms+ 30000
  "The time, in ms, after which nodes that are not alone accept a date that differs as much. Each
node reports its machine's date three times in this period.")
(defconstant +longest-outage-ms+ 86400000
  "The longest time, in ms, by which the date may be behind the machine's because of an outage.")

(defstruct (date-step (:copier nil) (:predicate nil))
  "A requested offset of the date that is far from the present one."
  (offset 0 :type integer :read-only t) ; the offset that the machines ask for
  (begin-ms 0 :type integer :read-only t) ; since when the machines ask for OFFSET, by STEADY-MS
  (proof-ms 0 :type integer :read-only t)) ; how long OFFSET must be requested

(defstruct (dates (:constructor make-dates (clock)) (:copier nil))
  "The dates that a node knows, in milliseconds since 1970. An offset is a date minus STEADY-MS."
  (clock nil :type function :read-only t) ; the machine's clock: nanoseconds since 1970
  (lock (sb-thread:make-mutex :name "clgrpc workflow dates") :read-only t) ; guards all slots below
  (offset nil :type (or null integer))  ; the offset of the nodes' date; nil until it is known
  (others (make-hash-table :test 'equal) :type hash-table
          :read-only t) ; from names of other nodes to the offsets of their machines' dates
  ;; the step that the machines ask for and that is not made yet
  (date-step nil :type (or null date-step)))

(declaim (sb-ext:freeze-type date-step dates))

(define-printer (dates dates)
  "~A of ~D other nodes" (dates-offset dates) (hash-table-count (dates-others dates)))

(defun steady-ms ()
  "The time of a clock that no program sets, and that advances while the machine is suspended."
  (floor (+ (loop:world-now) (if (loop:simulated-p) 0 (suspended-ns))) 1000000))

(defun machine-ms (dates)
  (floor (the integer (funcall (the function (dates-clock dates)))) 1000000))

(defun middle (offsets)
  "Two values: the middle two of OFFSETS, or twice the middle one if the number of OFFSETS is odd."
  (let* ((sorted (sort (copy-list offsets) #'<)) (count (length sorted)))
    (values (elt sorted (floor (1- count) 2)) (elt sorted (floor count 2)))))

(defun common-offset (dates own)
  "The offset on which most machines agree; OWN is the offset of this machine."
  (multiple-value-bind (low high)
      (middle (cons own (alexandria:hash-table-values (dates-others dates))))
    (let ((offset (dates-offset dates)))
      (cond ((< offset (- low +date-slack-ms+)) low)
            ((> offset (+ high +date-slack-ms+)) high)
            (t offset)))))

(defun same-step-p (date-step offset proof-ms)
  "True if DATE-STEP requests an offset near OFFSET, to be adopted after PROOF-MS."
  (and (= proof-ms (date-step-proof-ms date-step))
       (<= (abs (- offset (date-step-offset date-step))) +longest-step-ms+)))

(defun proven-offset (dates offset steady proof-ms)
  "The offset of DATES at the time STEADY, when OFFSET is requested. If OFFSET differs much from the
present offset, it is adopted only once such an offset has been requested for PROOF-MS."
  (let ((present (dates-offset dates)) (date-step (dates-date-step dates)))
    (cond ((<= (abs (- offset present)) +longest-step-ms+)
           (setf (dates-date-step dates) nil)
           offset)
          ((not (and date-step (same-step-p date-step offset proof-ms)))
           (setf (dates-date-step dates)
                 (make-date-step :offset offset :begin-ms steady :proof-ms proof-ms))
           (log-event :warning :workflow-date-doubted
                      :seconds-off (round (- offset present) 1000))
           present)
          ((< (- steady (date-step-begin-ms date-step)) proof-ms) present)
          (t (setf (dates-date-step dates) nil)
             offset))))

(defun date-now (dates)
  (sb-thread:with-mutex ((dates-lock dates))
    (let* ((steady (steady-ms))
           (own (- (machine-ms dates) steady))
           (lonely (zerop (hash-table-count (dates-others dates)))))
      (+ steady
         (setf (dates-offset dates)
               (cond ((null (dates-offset dates)) own)
                     (lonely (proven-offset dates own steady +lonely-proof-ms+))
                     (t (proven-offset dates (common-offset dates own) steady
                                       +common-proof-ms+))))))))

(defun begin-date (dates others stored)
  "Begin DATES with the values of the OTHERS, a list of (name its-machine's-date nodes'-date).
If there are no others, begin with the date STORED, unless that is nil."
  (let ((machine (machine-ms dates)) (steady (steady-ms)))
    (sb-thread:with-mutex ((dates-lock dates))
      (unless (dates-offset dates)
        (loop for (name ms) in others
              do (setf (gethash name (dates-others dates)) (- ms steady)))
        (setf (dates-offset dates)
              (- (cond (others (values (middle (mapcar #'third others))))
                       ((or (null stored) (<= stored machine (+ stored +longest-outage-ms+)))
                        machine)
                       (t stored))
                 steady))))))

(defun note-machine (dates name ms)
  "Note that the machine of the other node NAME has the date MS. Return true if the node is new."
  (sb-thread:with-mutex ((dates-lock dates))
    (prog1 (not (nth-value 1 (gethash name (dates-others dates))))
      (setf (gethash name (dates-others dates)) (- ms (steady-ms))))))

(defun forget-machine (dates name)
  (sb-thread:with-mutex ((dates-lock dates)) (remhash name (dates-others dates))))

(defun other-nodes (dates)
  (sb-thread:with-mutex ((dates-lock dates))
    (alexandria:hash-table-keys (dates-others dates))))
