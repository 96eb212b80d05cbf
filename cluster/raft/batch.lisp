;;;; Batches: the pipeline joins requests that follow each other in one log and term, and sends them
;;;; as one request. The joint request means the same to the receiver as one request after the
;;;; other, so its answer is the answer to each. The functions here are pure functions of requests.

(in-package #:clgrpc.raft)

(defstruct (queued-request (:constructor make-queued-request (request octets then)) (:copier nil))
  "A request that was given to the pipeline."
  (request nil :read-only t)            ; the AppendEntriesRequest
  (octets 0 :type index :read-only t)   ; the octets of data in the entries of REQUEST
  (then nil :type function :read-only t)) ; the function to call with the answer

(defstruct (batch (:constructor make-batch (queued-requests)) (:copier nil))
  "Queued requests that are sent and answered as one request."
  (queued-requests '() :type list :read-only t) ; the requests, oldest first
  (noted nil :type boolean)             ; the meter has counted the batch
  (sent-ns 0 :type nanoseconds))        ; when the batch was given to the stream

(declaim (sb-ext:freeze-type queued-request batch))

(define-printer (queued-request queued-request)
  "~D entries" (queued-request-entries queued-request))

(define-printer (batch batch)
  "of ~D" (length (batch-queued-requests batch)))

(defun queued-request-entries (queued-request)
  (length (v1:append-entries-request-entries (queued-request-request queued-request))))

(defun follows-p (request before)
  "True if REQUEST continues the log where BEFORE, another request, ends, in the same term."
  (let ((entries (v1:append-entries-request-entries before)))
    (and (plusp (length entries))
         (plusp (length (v1:append-entries-request-entries request)))
         (= (v1:append-entries-request-term request) (v1:append-entries-request-term before))
         (let ((last (aref entries (1- (length entries)))))
           (and (= (v1:append-entries-request-prev-log-index request) (v1:entry-index last))
                (= (v1:append-entries-request-prev-log-term request) (v1:entry-term last)))))))

(defun take-batch (fifo max-entries max-octets)
  "Take from FIFO the oldest queued requests that fit into one request of MAX-ENTRIES and MAX-OCTETS
of data; at least one, even if it is larger. Return a batch, or nil if FIFO is empty."
  (let ((queued-requests '()) (entries 0) (octets 0))
    (declare (type index entries octets))
    (loop
      (let ((next (first (fifo-items fifo))))
        (when (or (null next)
                  (and queued-requests
                       (not (and (follows-p (queued-request-request next)
                                            (queued-request-request (first queued-requests)))
                                 (<= (+ entries (queued-request-entries next)) max-entries)
                                 (<= (+ octets (queued-request-octets next)) max-octets)))))
          (return))
        (incf entries (queued-request-entries next))
        (incf octets (queued-request-octets next))
        (push (dequeue fifo) queued-requests)))
    (and queued-requests (make-batch (nreverse queued-requests)))))

(defun batch-entries (batch)
  (loop for queued-request in (batch-queued-requests batch) sum
        (queued-request-entries queued-request) of-type index))

(defun batch-octets (batch)
  (loop for queued-request in (batch-queued-requests batch) sum
        (queued-request-octets queued-request) of-type index))

(defun joined-entries (requests count)
  "The entries of REQUESTS, COUNT in all, in one sequence."
  (let ((entries (make-array count)) (start 0))
    (dolist (request requests entries)
      (let ((some (v1:append-entries-request-entries request)))
        (replace entries some :start1 start)
        (incf start (length some))))))

(defun batch-request (batch group sender receiver)
  "One AppendEntriesRequest, with an address, that has the effect of all requests of BATCH."
  (let* ((requests (mapcar #'queued-request-request (batch-queued-requests batch)))
         (first (first requests)))
    (if (rest requests)
        (v1:make-append-entries-request
         :term (v1:append-entries-request-term first)
         :sender sender
         :prev-log-index (v1:append-entries-request-prev-log-index first)
         :prev-log-term (v1:append-entries-request-prev-log-term first)
         :leader-commit (reduce #'max requests :key #'v1:append-entries-request-leader-commit)
         :entries (joined-entries requests (batch-entries batch))
         :group group :receiver receiver)
        (addressed-entries first group sender receiver))))
