;;;; A toy member: its log, which is a list of texts, and what it answers to Raft's messages.
;;;; Handlers run on several threads at once, so everything is under one lock.

(in-package #:clgrpc.examples.raft-toy)

(defstruct (item (:constructor make-item (term text)))
  "An entry of a toy's log."
  (term 0)                              ; of the leader that has made it
  (text ""))                            ; what it says

(defclass toy ()
  ((name :initarg :name :reader toy-name)
   (term :initform 0 :accessor toy-term)
   (vote :initform nil :accessor toy-vote) ; whom it has voted for in this term
   ;; of its log, from entry 1 on
   (items :initform (make-array 0 :adjustable t :fill-pointer t) :accessor toy-items)
   (commit :initform 0 :accessor toy-commit)
   (told :initform nil :accessor toy-told) ; it was told to begin an election
   (parts :initform '() :accessor toy-parts) ; of a snapshot that comes, the last first
   (lock :initform (sb-thread:make-mutex :name "toy") :reader toy-lock)
   (server :initform nil :accessor toy-server)
   (peers :initform '() :accessor toy-peers))
  (:documentation "A member that keeps its log in memory: good for showing the calls, and nothing
else."))

(defun make-toy (name)
  (make-instance 'toy :name name))

(defmethod print-object ((toy toy) stream)
  (print-unreadable-object (toy stream :type t)
    (format stream "~A, term ~D, ~D entries" (toy-name toy) (toy-term toy)
            (length (toy-items toy)))))

(defmacro with-toy ((toy) &body body)
  `(sb-thread:with-mutex ((toy-lock ,toy)) ,@body))

(defun toy-texts (toy)
  "What the log of TOY says, oldest first."
  (with-toy (toy) (map 'list #'item-text (toy-items toy))))

(defun last-index (toy)
  (length (toy-items toy)))

(defun term-at (toy index)
  (if (<= 1 index (last-index toy))
      (item-term (aref (toy-items toy) (1- index)))
      0))

(defun note-term (toy term)
  "TOY has heard of TERM."
  (when (> term (toy-term toy))
    (setf (toy-term toy) term
          (toy-vote toy) nil)))

;;; What it answers

(defun good-candidate-p (toy request)
  "True if the log of the candidate of REQUEST is no older than that of TOY (Raft, 5.4.1)."
  (let ((term (v1:request-vote-request-last-log-term request))
        (own (term-at toy (last-index toy))))
    (or (> term own)
        (and (= term own)
             (>= (v1:request-vote-request-last-log-index request) (last-index toy))))))

(defmethod raft:handle-pre-vote ((toy toy) request)
  (with-toy (toy)
    (v1:make-request-vote-response
     :term (toy-term toy)
     :granted (and (> (v1:request-vote-request-term request) (toy-term toy))
                   (good-candidate-p toy request)))))

(defmethod raft:handle-request-vote ((toy toy) request)
  (with-toy (toy)
    (let ((term (v1:request-vote-request-term request))
          (candidate (v1:request-vote-request-candidate request)))
      (note-term toy term)
      (let ((granted (and (= term (toy-term toy))
                          (member (toy-vote toy) (list nil candidate) :test #'equal)
                          (good-candidate-p toy request)
                          t)))
        (when granted (setf (toy-vote toy) candidate))
        (v1:make-request-vote-response :term (toy-term toy) :granted granted)))))

(defun append-item (toy entry)
  "Put ENTRY where it belongs in the log of TOY; what is there of another term goes (Raft, 5.3)."
  (let ((index (v1:entry-index entry)))
    (when (and (<= index (last-index toy)) (/= (v1:entry-term entry) (term-at toy index)))
      (setf (fill-pointer (toy-items toy)) (1- index)))
    (when (> index (last-index toy))
      (vector-push-extend (make-item (v1:entry-term entry) (octets-text (v1:entry-data entry)))
                          (toy-items toy)))))

(defmethod raft:handle-append-entries ((toy toy) request)
  (with-toy (toy)
    (note-term toy (v1:append-entries-request-term request))
    (let ((good (and (= (v1:append-entries-request-term request) (toy-term toy))
                     (<= (v1:append-entries-request-prev-log-index request) (last-index toy))
                     (= (v1:append-entries-request-prev-log-term request)
                        (term-at toy (v1:append-entries-request-prev-log-index request))))))
      (when good
        (map nil (lambda (entry) (append-item toy entry))
             (v1:append-entries-request-entries request))
        (setf (toy-commit toy) (max (toy-commit toy)
                                    (min (v1:append-entries-request-leader-commit request)
                                         (last-index toy)))))
      (v1:make-append-entries-response :term (toy-term toy) :success good
                                       :match-index (if good (last-index toy) 0)
                                       :conflict-index (if good 0 (1+ (last-index toy)))))))

(defmethod raft:handle-timeout-now ((toy toy) request)
  (declare (ignore request))
  (with-toy (toy)
    (setf (toy-told toy) t)
    (v1:make-timeout-now-response :term (toy-term toy))))

;;; Snapshots: a line for each entry, its term and its text

(defun octets-text (octets)
  (sb-ext:octets-to-string octets :external-format :utf-8))

(defun text-octets (text)
  (coerce (sb-ext:string-to-octets text :external-format :utf-8)
          '(simple-array (unsigned-byte 8) (*))))

(defun snapshot-of (toy)
  "The log of TOY as octets."
  (with-toy (toy)
    (text-octets (format nil "~{~{~D ~A~}~%~}"
                         (map 'list (lambda (item) (list (item-term item) (item-text item)))
                              (toy-items toy))))))

(defun install (toy octets)
  "Have the log of TOY be what OCTETS, of SNAPSHOT-OF, say."
  (setf (fill-pointer (toy-items toy)) 0)
  (with-input-from-string (stream (octets-text octets))
    (loop for line = (read-line stream nil)
          while line
          do (let ((space (position #\Space line)))
               (vector-push-extend (make-item (parse-integer line :end space)
                                              (subseq line (1+ space)))
                                   (toy-items toy))))))

(defmethod raft:handle-install-snapshot ((toy toy) header offset)
  (with-toy (toy)
    (note-term toy (v1:snapshot-header-term header))
    (let ((has-it (<= (v1:snapshot-header-last-included-index header) (toy-commit toy)))
          (late (> (toy-term toy) (v1:snapshot-header-term header))))
      (when (and (zerop offset) (not has-it) (not late)) (setf (toy-parts toy) '()))
      (v1:make-install-snapshot-response :term (toy-term toy) :installed has-it))))

(defmethod raft:handle-snapshot-chunk ((toy toy) header offset data)
  (declare (ignore header offset))
  (with-toy (toy) (push data (toy-parts toy))))

(defmethod raft:handle-snapshot-end ((toy toy) header)
  (with-toy (toy)
    (install toy (apply #'concatenate '(simple-array (unsigned-byte 8) (*))
                        (reverse (toy-parts toy))))
    (setf (toy-parts toy) '()
          (toy-commit toy) (v1:snapshot-header-last-included-index header))
    (v1:make-install-snapshot-response :term (toy-term toy))))
