;;;; What requests the pipeline sends as one: such as follow each other in one log and term. That
;;;; says the same to the receiver as one after the other would, so the answer is each one's. Pure
;;;; functions of requests.

(in-package #:clgrpc.raft)

(defstruct (parcel (:constructor make-parcel (request octets then)) (:copier nil))
  "A request that the pipeline was given."
  (request nil :read-only t)            ; the AppendEntriesRequest
  (octets 0 :type index :read-only t)   ; of data in its entries
  (then nil :type function :read-only t)) ; to be called with the answer

(defstruct (batch (:constructor make-batch (parcels)) (:copier nil))
  "What is sent in one request, and answered at once."
  (parcels '() :type list :read-only t) ; oldest first
  (noted nil :type boolean)             ; the meter has it
  (sent-ns 0 :type nanoseconds))        ; when it was given to the stream

(declaim (sb-ext:freeze-type parcel batch))

(defmethod print-object ((parcel parcel) stream)
  (print-unreadable-object (parcel stream :type t)
    (format stream "~D entries" (parcel-entries parcel))))

(defmethod print-object ((batch batch) stream)
  (print-unreadable-object (batch stream :type t)
    (format stream "of ~D" (length (batch-parcels batch)))))

(defun parcel-entries (parcel)
  "How many entries the request of PARCEL has."
  (length (v1:append-entries-request-entries (parcel-request parcel))))

(defun follows-p (request before)
  "True if REQUEST goes on in the log where BEFORE, another, ends, in the same term of one leader."
  (let ((entries (v1:append-entries-request-entries before)))
    (and (plusp (length entries))
         (plusp (length (v1:append-entries-request-entries request)))
         (= (v1:append-entries-request-term request) (v1:append-entries-request-term before))
         (string= (v1:append-entries-request-leader request)
                  (v1:append-entries-request-leader before))
         (let ((last (aref entries (1- (length entries)))))
           (and (= (v1:append-entries-request-prev-log-index request) (v1:entry-index last))
                (= (v1:append-entries-request-prev-log-term request) (v1:entry-term last)))))))

(defun take-batch (fifo max-entries max-octets)
  "Take the oldest parcels out of FIFO that go in one request of MAX-ENTRIES and MAX-OCTETS of data
at most, or one if it has more. Return a batch, or nil if there is nothing."
  (let ((parcels '()) (entries 0) (octets 0))
    (declare (type index entries octets))
    (loop
      (let ((next (first (fifo-items fifo))))
        (when (or (null next)
                  (and parcels
                       (not (and (follows-p (parcel-request next) (parcel-request (first parcels)))
                                 (<= (+ entries (parcel-entries next)) max-entries)
                                 (<= (+ octets (parcel-octets next)) max-octets)))))
          (return))
        (incf entries (parcel-entries next))
        (incf octets (parcel-octets next))
        (push (dequeue fifo) parcels)))
    (and parcels (make-batch (nreverse parcels)))))

(defun batch-entries (batch)
  (loop for parcel in (batch-parcels batch) sum (parcel-entries parcel) of-type index))

(defun batch-octets (batch)
  (loop for parcel in (batch-parcels batch) sum (parcel-octets parcel) of-type index))

(defun joined-entries (requests count)
  "The entries of REQUESTS, COUNT in all, one behind the other."
  (let ((entries (make-array count)) (start 0))
    (dolist (request requests entries)
      (let ((some (v1:append-entries-request-entries request)))
        (replace entries some :start1 start)
        (incf start (length some))))))

(defun batch-request (batch)
  "The AppendEntriesRequest that says what those of BATCH do."
  (let* ((requests (mapcar #'parcel-request (batch-parcels batch)))
         (first (first requests)))
    (if (rest requests)
        (v1:make-append-entries-request
         :term (v1:append-entries-request-term first)
         :leader (v1:append-entries-request-leader first)
         :prev-log-index (v1:append-entries-request-prev-log-index first)
         :prev-log-term (v1:append-entries-request-prev-log-term first)
         :leader-commit (reduce #'max requests :key #'v1:append-entries-request-leader-commit)
         :entries (joined-entries requests (batch-entries batch)))
        first)))
