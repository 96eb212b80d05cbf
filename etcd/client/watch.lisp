;;;; Watches: each change of a range of keys reaches the user once, in the order of the revisions,
;;;; even if connections break meanwhile. A watch knows the least revision of the next change. When
;;;; its stream has broken, the watch requests the changes from there on from any member that can be
;;;; reached, and skips changes that its user has already received. Only two events interrupt this:
;;;; compaction, and a store that has gone back because it has lost its data or was restored from
;;;; older data. Both events are reported and end the watch. A response of many changes may arrive
;;;; in fragments: the changes of the last revision are kept until all of them have arrived. etcd
;;;; gives the same refusal for missing rights and for an invalid token: so a watch whose client has
;;;; a user first tries once with a new token.
;;;;
;;;; The meaning of a response is a function of the watch and the response (NOTE-RESPONSE). One
;;;; stream serves all watches of a client (multiplex.lisp). Each watch has a job (watch-job.lisp).

(in-package #:clgrpc.etcd)

(defconstant +first-pause-seconds+ 1/20
  "How long a watch waits before its first new request.")
(defconstant +longest-pause-seconds+ 2 "The longest time that a watch waits before a new request.")
(defconstant +progress-seconds+ 1/4 "How long progress is awaited before it is requested again.")

(defstruct (change (:constructor make-change (kind entry previous)) (:copier nil))
  "A change reported by a watch."
  (kind :put :type (member :put :removal) :read-only t) ; the change's kind
  ;; the entry after the change; for a removal its key and revision
  (entry nil :type entry :read-only t)
  ;; the entry before the change, if that was requested
  (previous nil :type (or null entry) :read-only t))

(declaim (sb-ext:freeze-type change))

(document-functions
  change-kind "Return the kind of CHANGE: :put, or :removal, which may be due to the end of the
entry's lease."
  change-entry "The entry after the change. After a removal it has only a key, and as
ENTRY-CHANGED the revision of the removal."
  change-previous "Return the entry as it was before the change, if the watch has :previous and the
entry is not compacted; nil if it did not exist.")

(define-printer (change change)
  "~(~A~) ~A" (change-kind change) (change-entry change))

(defstruct (watch (:constructor %make-watch) (:copier nil))
  "A watch of a range of keys, see the function WATCH."
  (etcd nil :type etcd :read-only t)    ; the client to which the watch belongs
  (start nil :type octets :read-only t) ; the first key of its range
  (end nil :type octets :read-only t)   ; the end of that, empty for one key
  (filters '() :type list :read-only t) ; kinds of changes to leave out, as the messages have them
  (previous nil :type boolean :read-only t) ; bring the entry before a change, too
  (function nil :type function :read-only t) ; a function of a list of changes and their revision
  ;; a function of the ETCD-ERROR that has ended it
  (on-end nil :type (or null function) :read-only t)
  (after nil :type boolean)             ; the user knows all changes before NEXT-REVISION
  ;; the least possible revision of the next change; 0: not known yet
  (next-revision 0 :type (signed-byte 64))
  (seen 0 :type (signed-byte 64))       ; the latest revision of the store that etcd has reported
  (term 0 :type (unsigned-byte 64))     ; the latest term of a leader that etcd has reported
  (cluster 0 :type (unsigned-byte 64))  ; the number of etcd's cluster, 0 while unknown
  (mark nil :type (or null entry))      ; the last put that the user has got
  (fragments '() :type list)            ; changes of a revision of which more may follow
  (fragment-octets 0 :type (integer 0)) ; about how many octets the kept fragments have
  (token nil :type (or null string))    ; the token with which its stream was opened
  (denied nil :type boolean)            ; etcd has denied the watch since it was last open
  ;; the pauses before the next stream
  (pauses (loop:make-pauses +first-pause-seconds+ +longest-pause-seconds+)
   :type loop:pauses :read-only t)
  (resume-ns 0 :type nanoseconds)       ; when the present pause is over
  ;; the call that its job waits for
  (cancellation-token (make-cancellation-token) :type cancellation-token :read-only t)
  (ending nil :type (or null function)) ; a function that ends the watch, called by CLOSE-ETCD
  (job nil :type (or null loop:job))    ; the job that takes RESPONSES
  (lock (sb-thread:make-mutex :name "clgrpc watch") :read-only t) ; guards the slots below
  ;; notified when any slot below has changed
  (waitqueue (sb-thread:make-waitqueue :name "clgrpc watch") :read-only t)
  ;; the queue, each item with its octets: responses, then :outrun or the end of the stream
  (responses (make-fifo) :type fifo :read-only t)
  (waiting-octets 0 :type (integer 0))  ; octets of the responses that wait
  (number nil :type (or null (integer 1))) ; the watch's number on its stream, while it is on one
  (state :opening :type (member :opening :open :ended)) ; :open once etcd has begun the watch
  (begun nil :type boolean)             ; etcd has begun the watch once
  (progress 0 :type (signed-byte 64))   ; the revision that the last progress is of
  (progress-count 0 :type (integer 0))  ; the number of progress notices
  (failure nil :type (or null condition)) ; the cause of its end, or of its not being opened
  (call nil))                           ; the stream, while the watch has one

(declaim (sb-ext:freeze-type watch))

(document-functions
  watch-next-revision "Return a revision from which another watch can begin without missing a
  change: that of the next change of WATCH, or an earlier one. The user has got all changes before
  that revision.")

(defmethod print-object ((watch watch) stream)
  (print-unreadable-object (watch stream :type t)
    (write-key (watch-start watch) stream)
    (format stream "~:[…~;~], ~(~A~), next revision ~D" (zerop (length (watch-end watch)))
            (watch-state watch) (watch-next-revision watch))))

(defun watch-open-p (watch)
  "True until WATCH has ended. From any thread."
  (not (eq :ended (watch-state watch))))

;;; The meaning of responses

(defun change-of (event)
  "The change that EVENT, a MVCCPB:EVENT, describes."
  (make-change (case (mvccpb:event-type event)
                 (:put :put)
                 (:delete :removal)
                 (t (error 'unavailable :text "etcd has sent a change of an unknown kind")))
               (entry-of (need-part (mvccpb:event-kv event)))
               (entry-of (mvccpb:event-prev-kv event))))

(defun note-changes (watch changes)
  "Handle CHANGES, the next changes of WATCH."
  (dolist (change changes)
    (let ((entry (change-entry change)))
      (setf (watch-next-revision watch) (max (1+ (entry-changed entry))
                                             (watch-next-revision watch)))
      (when (eq :put (change-kind change)) (setf (watch-mark watch) entry)))))

(defun split-last-revision (changes)
  "Two values: the CHANGES of all revisions but the last, and those of the last revision."
  (flet ((revision-of (change) (entry-changed (change-entry change))))
    (if-let ((at (and changes (position (revision-of (first (last changes))) changes
                                        :key #'revision-of))))
      (values (subseq changes 0 at) (nthcdr at changes))
      (values '() '()))))

(defun most-fragment-octets ()
  "About how many octets the changes that all watches of a client keep may take: some revisions
remove a whole store."
  (values (floor (sb-ext:dynamic-space-size) 8)))

(defun keep-fragments (watch changes)
  "Keep CHANGES, of a revision of which more may follow, for WATCH, in place of the changes kept
before. Signal INVALID-REQUEST, and keep none, if the client's watches keep too many."
  (flet ((octets (entry)
           (if entry (+ 200 (length (entry-key-octets entry)) (length (entry-value entry))) 0)))
    (let ((octets (loop for change in changes
                        sum (+ (octets (change-entry change))
                               (octets (change-previous change)))))
          (etcd (watch-etcd watch)))
      (unless (and (zerop octets) (zerop (watch-fragment-octets watch)))
        (sb-thread:with-mutex ((etcd-lock etcd))
          (unless (watch-open-p watch)  ; it ended meanwhile
            (setf changes '() octets 0))
          (setf (watch-fragments watch) changes)
          (incf (etcd-fragment-octets etcd)
                (- octets (shiftf (watch-fragment-octets watch) octets))))
        (when (and changes (> (etcd-fragment-octets etcd) (most-fragment-octets)))
          (keep-fragments watch '())
          (error 'invalid-request :text (format nil "the changes of revision ~D, and those that ~
                                                     other watches wait for, take more than ~D ~
                                                     octets, an eighth of the heap"
                                                (entry-changed (change-entry (first changes)))
                                                (most-fragment-octets))))))))

(defun note-response (watch response)
  "Take RESPONSE, a WatchResponse, for WATCH. Return the changes in RESPONSE that WATCH's user has
not got before, a list. Signal COMPACTED if etcd has compacted the next changes, or another
ETCD-ERROR if it has ended the stream."
  (let* ((next (watch-next-revision watch))
         (revision (header-revision (pb:watch-response-header response)))
         (events (remove-if (lambda (change) (< (entry-changed (change-entry change)) next))
                            (map 'list #'change-of (pb:watch-response-events response))))
         (changes (append (watch-fragments watch) events)))
    (unless (pb:watch-response-fragment response) (keep-fragments watch '()))
    (cond ((pb:watch-response-fragment response)
           (multiple-value-bind (whole more) (split-last-revision changes)
             (keep-fragments watch more)
             (setf changes whole))
           (note-changes watch changes))
          ((plusp (pb:watch-response-compact-revision response))
           (error 'compacted :text (format nil "the changes from revision ~D on are compacted" next)
                             :revision (pb:watch-response-compact-revision response)))
          ((pb:watch-response-canceled response)
           (let ((reason (pb:watch-response-cancel-reason response)))
             (error (cond ((text-condition reason))
                          ((some (lambda (text) (search text reason)) *stale-token-texts*)
                           'access-denied)
                          (t 'unavailable))
                    :text (format nil "etcd has ended the watch: ~A" reason))))
          (changes (note-changes watch changes))
          ;; etcd begins after the revision of this response, unless the request named another
          ((pb:watch-response-created response)
           (when (zerop next) (setf (watch-next-revision watch) (1+ revision))))
          ;; the answer to AWAIT-PROGRESS, which is for all watches of a stream; etcd before 3.4.25
          ;; and 3.5.8 may give it before the changes that it is about, so no stream begins there
          ((minusp (pb:watch-response-watch-id response))
           (setf (watch-progress watch) revision)
           (incf (watch-progress-count watch)))
          ;; no changes up to this revision
          ((zerop (length (pb:watch-response-events response)))
           (setf (watch-next-revision watch) (max next (1+ revision)))))
    changes))

(defun start-revision (watch)
  "The revision from which to request the changes of WATCH from etcd; 0 means from now on. If the
changes of the revision before the next one are known, request from that revision: etcd before
3.4.36, 3.5.18 and 3.6 omits a removal at the very revision up to which it is compacted, and reports
COMPACTED only for earlier revisions."
  (let ((next (watch-next-revision watch)))
    (if (or (watch-begun watch) (watch-after watch))
        (max 1 (1- next))
        next)))

(defun creation (watch)
  "The request by which etcd begins WATCH, or begins it again."
  (pb:make-watch-request
   :create-request (pb:make-watch-create-request
                    :watch-id (watch-number watch)
                    :key (watch-start watch) :range-end (watch-end watch)
                    :start-revision (start-revision watch) :progress-notify t :fragment t
                    :filters (watch-filters watch) :prev-kv (watch-previous watch))))

(defun set-watch (watch function)
  "Call FUNCTION, which changes WATCH, under its lock, and wake the threads that wait. Do nothing if
WATCH has ended, and return false."
  (sb-thread:with-mutex ((watch-lock watch))
    (when (watch-open-p watch)
      (funcall function)
      (sb-thread:condition-broadcast (watch-waitqueue watch))
      t)))
