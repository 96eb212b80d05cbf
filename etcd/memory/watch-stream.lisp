;;;; Watches. A stream of watches occupies no thread: its call is kept. A thread that has news for
;;;; it (a change of the store, a request, room) advances the stream. A watch records the revision
;;;; that it sends next, and reads its changes from the store. So nothing is queued for a slow
;;;; client; a client that is slower than the store forgets gets the error that its changes are
;;;; compacted. Requests of a client wait, as in all calls, while it leaves answers unread. A
;;;; request for progress is answered when all watches of the stream have sent all changes before
;;;; it.
;;;;
;;;; One thread at a time advances a stream. STATE is :idle, :busy while a thread advances it, or
;;;; :again if something new has arrived since that thread began. No lock is held while it sends,
;;;; nor while it scans changes.
;;;;
;;;; A short request may read the whole store. So a thread that advances a stream scans
;;;; +CHANGES-AT-ONCE+ changes, for all of its watches, and leaves the rest to the engine's thread.
;;;; The engine's thread makes one response at a time and then continues with other streams. A watch
;;;; with FRAGMENT gets a revision of more than +MOST-OCTETS+ in several responses, all but the last
;;;; marked as fragments. A watch without FRAGMENT gets the revision in one response, as in etcd,
;;;; but is cancelled if the response exceeds +LONGEST-RESPONSE+.

(in-package #:clgrpc.memory)

(defconstant +most-revisions+ 1000
  "The maximum number of revisions whose changes are in one response.")
(defconstant +most-octets+ 1048576
  "The octets of a response at which no further change is added to it.")
(defconstant +longest-response+ 16777216
  "The maximum length, in octets, of a response that must not be cut before the end of a revision.")
(defconstant +changes-at-once+ 1000
  "How many changes a thread scans at once, if it has other things to do.")
(defconstant +longest-watched-key+ 4096
  "The maximum number of octets of a watch's first key and of its end, which are kept as long as the
watch.")
(defconstant +drops-at-once+ 500 "How many watches of an ended stream are dropped at a time.")

(defstruct (watching (:include listener) (:constructor make-watching (engine call)) (:copier nil))
  "A stream of watches."
  (engine nil :type engine :read-only t) ; the engine whose changes the stream sends
  (call nil :type rpc:call :read-only t) ; the stream
  ;; requests that have arrived, the last first; changed by ATOMIC-UPDATE
  (requests '() :type list)
  (answers (make-fifo) :type fifo :read-only t) ; answers to requests, which must be sent
  (progress 0 :type (integer 0))        ; how many requests for progress are not answered yet
  (watches (make-hash-table) :type hash-table :read-only t) ; watches by their numbers
  (number 0 :type (signed-byte 64))     ; the number that the next watch gets if it is free
  (room t :type boolean)                ; false while the call has no room
  (ended nil :type boolean)             ; the call has
  (state :idle :type (member :idle :busy :again))) ; see above

(declaim (sb-ext:freeze-type watching))

;;; The changes of a watch

(defun event (watch change)
  "The message of CHANGE."
  (let ((item (change-item change)))
    (mvccpb:make-event :type (if (removal-p change) :delete :put)
                       :kv (if (removal-p change)
                               (mvccpb:make-key-value :key (item-key item)
                                                      :mod-revision (item-changed item))
                               (key-value item))
                       :prev-kv (and (watch-previous watch)
                                     (key-value (change-previous change))))))

(defun event-octets (watch change)
  "The estimated number of octets of CHANGE in a response to WATCH."
  (let ((previous (change-previous change)))
    (+ (item-cost (change-item change))
       (if (and previous (watch-previous watch)) (item-cost previous) 0))))

(defstruct (scan (:copier nil))
  "The changes that a watch has found and must send, and its position in the store."
  (watch nil :type watch :read-only t)  ; the watch for which the scan looks
  (events '() :type list)               ; changes that the scan has found, the last first
  (octets 0 :type (integer 0))          ; the estimated size of EVENTS
  (revision 0 :type (signed-byte 64))   ; the revision at which the scan continues
  (passed 0 :type index)                ; how many changes of REVISION were examined before
  (count 0 :type index))                ; changes that the scan has examined

(declaim (sb-ext:freeze-type scan))

(defun scan-record (scan record)
  "Let SCAN examine RECORD, of its next revision."
  (incf (scan-count scan))
  (loop with watch = (scan-watch scan)
        with changes = (record-changes record)
        with most = (if (watch-fragment watch) +most-octets+ +longest-response+)
        for i from (scan-passed scan) below (length changes)
        do (let ((change (aref changes i)))
             (when (told-p watch change)
               (when (>= (scan-octets scan) most)
                 (setf (scan-passed scan) i)
                 (return))
               (incf (scan-octets scan) (event-octets watch change))
               (push (event watch change) (scan-events scan)))
             (incf (scan-count scan)))
        finally (incf (scan-revision scan))
                (setf (scan-passed scan) 0)))

(defun scan-records (scan records most)
  "Let SCAN examine RECORDS, a list, one after the other. If RECORDS have MOST changes or more, scan
only some records at the beginning, or none."
  (loop for record in records
        for changes = (- (length (record-changes record)) (scan-passed scan))
        until (or (>= (scan-octets scan) +most-octets+)
                  (>= (+ (scan-count scan) changes) most))
        do (scan-record scan record)
        ;; it is cut
        until (plusp (scan-passed scan))))

(defun next-records (watch engine)
  "Three values. The first is a list of the records that WATCH must scan next; or :CAUGHT-UP if
there are none, or :COMPACTED if its next changes are compacted. The second is the revision of
ENGINE. The third is the revision of the first record, or, with :COMPACTED, the revision up to which
ENGINE is compacted."
  (with-engine (engine)
    (let* ((store (engine-store engine))
           (revision (store-revision store))
           (next (max (watch-next watch) (store-first store))))
      (cond ((< (watch-next watch) (store-compacted store))
             (values :compacted revision (store-compacted store)))
            ((> (watch-next watch) revision)
             (dequeue (listener-ready (watch-listener watch)))
             (setf (watch-caught-up watch) t)
             (values :caught-up revision next))
            (t
             (values (loop for r from next to (min revision (+ next +most-revisions+ -1))
                           collect (record-at store r))
                     revision
                     next))))))

(defun response (watch revision &rest arguments)
  "A response to WATCH when the store is at REVISION, with ARGUMENTS."
  (apply #'pb:make-watch-response :header (header revision) :watch-id (watch-number watch)
                                  arguments))

(defun scan-response (scan revision)
  "A response with the changes of SCAN when the store is at REVISION; nil if it has none."
  (let ((watch (scan-watch scan)) (cut (plusp (scan-passed scan))))
    (cond ((and cut (not (watch-fragment watch)))
           (response watch revision :canceled t
                                    :cancel-reason
                                    "etcdserver: a revision is too large for one response"))
          ((or cut (scan-events scan))
           (response watch revision :events (reverse (scan-events scan)) :fragment cut)))))

;;; Requests

(defun answer (watching response)
  "Queue RESPONSE at WATCHING, to be sent before everything else."
  (enqueue response (watching-answers watching)))

(defun find-watch (watching number)
  (values (gethash number (watching-watches watching))))

(defun refused (watching revision reason)
  "Answer that a watch cannot be created, for REASON, a text."
  (answer watching (pb:make-watch-response :header (header revision) :watch-id -1 :created t
                                           :canceled t :cancel-reason reason)))

(defun free-number (watching)
  (loop while (find-watch watching (watching-number watching))
        do (incf (watching-number watching)))
  (shiftf (watching-number watching) (1+ (watching-number watching))))

(defun next-serial (engine)
  (with-engine (engine) (incf (engine-serial engine))))

(defun begin-watch (watching watch)
  "Add WATCH to WATCHING. Return false if there are too many watches."
  (let ((engine (watching-engine watching)))
    (when (with-engine (engine)
            (when (add-watch engine watch)
              (make-ready watch)
              t))
      (when (watch-progress watch) (note-due watching watch))
      (setf (gethash (watch-number watch) (watching-watches watching)) watch))))

(defun note-due (watching watch)
  "Note that WATCH, of WATCHING, is due to send progress, unless it sends something else before
that."
  (setf (watching-due-ns watching)
        (min (watching-due-ns watching)
             (+ (watch-sent-ns watch) (engine-progress-ns (watching-engine watching))))))

(defun create-watch (watching request)
  "Do REQUEST, a WatchCreateRequest. A request without a key is for all keys."
  (let* ((engine (watching-engine watching))
         (revision (engine-revision engine))
         (key (let ((key (pb:watch-create-request-key request)))
                (if (zerop (length key)) (octets-of 0) key)))
         (number (pb:watch-create-request-watch-id request))
         (from (pb:watch-create-request-start-revision request)))
    (multiple-value-bind (start end)
        (range-bounds key (pb:watch-create-request-range-end request))
      (cond ((and end (not (before-p start end)))
             (refused watching revision "mvcc: watcher range is empty"))
            ((and (/= 0 number) (find-watch watching number))
             (refused watching revision "mvcc: duplicate watch ID provided on the WatchStream"))
            ((< +longest-watched-key+ (max (length start) (length end)))
             (refused watching revision "etcdserver: request is too large"))
            (t
             (let ((watch (make-watch
                           :key (place-of-range start (next-serial engine))
                           :start start :end end
                           :listener watching
                           :number (if (zerop number) (free-number watching) number)
                           :filters (coerce (pb:watch-create-request-filters request) 'list)
                           :previous (pb:watch-create-request-prev-kv request)
                           :fragment (pb:watch-create-request-fragment request)
                           :progress (pb:watch-create-request-progress-notify request)
                           :next (if (zerop from) (1+ revision) from)
                           :sent-ns (engine-now engine))))
               (if (begin-watch watching watch)
                   (answer watching (response watch revision :created t))
                   (refused watching revision "etcdserver: too many watches"))))))))

(defun drop-watch (watching watch)
  (remhash (watch-number watch) (watching-watches watching))
  (with-engine ((watching-engine watching)) (remove-watch (watching-engine watching) watch)))

(defun do-request (watching request)
  "Do REQUEST, a WatchRequest."
  (multiple-value-bind (request kind) (pb:watch-request-request-union request)
    (case kind
      (:create-request (create-watch watching request))
      (:cancel-request
       (when-let ((watch (find-watch watching (pb:watch-cancel-request-watch-id request))))
         (drop-watch watching watch)
         (answer watching (response watch (engine-revision (watching-engine watching))
                                    :canceled t))))
      (:progress-request (incf (watching-progress watching))))))

;;; Advancing a stream

(defun try-response (watching response)
  "Send RESPONSE, or return false if the call has no room."
  ;; set before the call, since there may be room again before it returns
  (setf (watching-room watching) nil)
  (when (rpc:try-send (watching-call watching) response)
    (setf (watching-room watching) t)))

(defun send-answers (watching)
  "Send the answers to requests; return false if the call has no room for some."
  (loop for answer = (first (fifo-items (watching-answers watching)))
        while answer
        always (try-response watching answer)
        do (dequeue (watching-answers watching))))

(defun try-response-of (watching watch response)
  "Send RESPONSE, of WATCH, or return false if the call has no room. If the response cancels WATCH,
drop WATCH."
  (when (try-response watching response)
    (setf (watch-sent-ns watch) (engine-now (watching-engine watching)))
    (when (pb:watch-response-canceled response) (drop-watch watching watch))
    t))

(defun tell-records (watching watch records most revision next)
  "Send the changes of WATCH in RECORDS, the first of which is of the revision NEXT; the store is at
REVISION. Return false if the call has no room; else the number of scanned changes: fewer than MOST,
and 0 if the first record has as many."
  (let ((scan (make-scan :watch watch :revision next
                         :passed (if (= next (watch-next watch)) (watch-passed watch) 0))))
    (scan-records scan records most)
    (let ((response (scan-response scan revision)))
      (when (or (null response) (try-response-of watching watch response))
        (setf (watch-next watch) (scan-revision scan)
              (watch-passed watch) (scan-passed scan))
        (scan-count scan)))))

(defun next-ready (watching)
  "The first of the watches of WATCHING that are ready; nil if none is ready."
  (with-engine ((watching-engine watching))
    (loop with ready = (listener-ready watching)
          for watch = (first (fifo-items ready))
          while (and watch (watch-dropped watch))
          do (dequeue ready)
          finally (return watch))))

(defun pass-turn (watching)
  "Move the first ready watch of WATCHING, which has had its turn, to the end."
  (with-engine ((watching-engine watching))
    (let ((ready (listener-ready watching)))
      (enqueue (dequeue ready) ready))))

(defun send-news-of (watching watch most)
  "Send one response of the first ready WATCH of WATCHING, if it has something to send, and scan
fewer than MOST changes for it. Return the number of scanned changes; 0 if the number would be MOST
or more; nil if the call has no room."
  (multiple-value-bind (records revision next) (next-records watch (watching-engine watching))
    (case records
      (:caught-up 1)
      (:compacted
       (and (try-response-of watching watch (response watch revision :canceled t
                                                                     :compact-revision next))
            1))
      (t (let ((looked (tell-records watching watch records most revision next)))
           (when looked (pass-turn watching))
           looked)))))

(defun send-news (watching most)
  "Send the changes of WATCHING's watches, and scan about MOST changes for that; or send one
response if MOST is nil. Return :all if nothing is left, :some if there may be more, nil if the call
has no room."
  (loop with left = (or most array-dimension-limit)
        for watch = (next-ready watching)
        do (unless watch (return :all))
           (let ((looked (send-news-of watching watch left)))
             (when (null looked) (return nil))
             (decf left looked)
             (when (or (null most) (zerop looked) (not (plusp left))) (return :some)))))

(defun send-notices (watching)
  "If notices are due, send the progress of the watches of WATCHING that must send it."
  (let* ((engine (watching-engine watching)) (now (engine-now engine)))
    (when (<= (watching-due-ns watching) now)
      (setf (watching-due-ns watching) most-positive-fixnum)
      (loop for watch being the hash-values of (watching-watches watching)
            do (when (watch-progress watch)
                 (when (and (<= (+ (watch-sent-ns watch) (engine-progress-ns engine)) now)
                            (watch-caught-up watch))
                   (try-response-of watching watch (response watch (engine-revision engine))))
                 (note-due watching watch))))))

(defun told-revision (watching)
  "The revision up to which all watches of WATCHING have sent all changes."
  (let ((engine (watching-engine watching)))
    (with-engine (engine)
      (loop with revision = (store-revision (engine-store engine))
            for watch in (fifo-items (listener-ready watching))
            do (unless (watch-dropped watch)
                 (setf revision (min revision (1- (watch-next watch)))))
            finally (return revision)))))

(defun send-progress (watching)
  "Answer the requests for progress of WATCHING, whose watches have sent all changes."
  (loop while (and (plusp (watching-progress watching))
                   (try-response watching
                                 (pb:make-watch-response
                                  :header (header (told-revision watching)) :watch-id -1)))
        do (decf (watching-progress watching))))

(defun end-watching (watching)
  (rpc:finish (watching-call watching) :status :unavailable
                                       :message "etcdserver: server stopped"))

(defun take-requests (watching)
  "Remove and return the waiting requests, in their order."
  (let ((requests '()))
    (sb-ext:atomic-update (watching-requests watching)
                          (lambda (all) (setf requests all) '()))
    (reverse requests)))

(defun drop-watches (watching)
  "Drop some watches of WATCHING, which has ended. Return :some if there are more."
  (loop for watch being the hash-values of (watching-watches watching)
        repeat +drops-at-once+
        collect watch into dropped
        finally (dolist (watch dropped) (drop-watch watching watch)))
  (when (plusp (hash-table-count (watching-watches watching))) :some))

(defun advance-once (watching most)
  "Advance WATCHING, as far as the call has room, and scan MOST changes for that, see SEND-NEWS.
Return :some if there may be more."
  (cond ((watching-ended watching) (drop-watches watching))
        ((rpc:call-status (watching-call watching)) nil)
        ((not (engine-open (watching-engine watching))) (end-watching watching) nil)
        (t
         (dolist (request (take-requests watching)) (do-request watching request))
         (when (and (watching-room watching) (send-answers watching))
           (let ((sent (send-news watching most)))
             (when (eq :all sent)
               (send-notices watching)
               (send-progress watching))
             sent)))))

(defun advance-guarded (watching most)
  "Do as ADVANCE-ONCE. An error that is not the call's own ends the call."
  (multiple-value-bind (sent condition)
      (loop:guarding (:memory-watch-error)
        ;; the call may end at any time
        (handler-case (advance-once watching most)
          (status:rpc-error () nil)))
    (when condition
      (rpc:finish (watching-call watching) :status :internal
                                           :message "etcdserver: an error in a watch"))
    sent))

(defun begin-advancing (watching)
  "True if this thread must advance WATCHING now. If another thread does, make it check again."
  (loop
    (case (watching-state watching)
      (:idle (when (eq :idle (compare-and-swap (watching-state watching) :idle :busy)) (return t)))
      (:busy (when (eq :busy (compare-and-swap (watching-state watching) :busy :again))
               (return nil)))
      (t (return nil)))))

(defun advance (watching most)
  "Advance WATCHING, see ADVANCE-ONCE, or make the thread that is doing so check again. The engine's
thread does the work that remains, also if this thread is interrupted."
  (sb-sys:without-interrupts
    (when (begin-advancing watching)
      (let ((sent :some) (done nil))
        (unwind-protect
             (loop
               (setf sent :some
                     sent (sb-sys:with-local-interrupts (advance-guarded watching most)))
               (when (eq :busy (compare-and-swap (watching-state watching) :busy :idle))
                 (return (setf done t)))
               (setf (watching-state watching) :busy)
               (sb-thread:barrier (:memory)))
          (unless done (setf (watching-state watching) :idle))
          (when (eq :some sent)
            (let ((engine (watching-engine watching)))
              (with-engine (engine) (leave-call engine watching)))))))))

(defun end-watches (watching)
  "Let the engine's job drop the watches of WATCHING, whose call has ended."
  (let ((engine (watching-engine watching)))
    (setf (watching-ended watching) t)
    (remove-listener engine watching)
    (with-engine (engine) (leave-call engine watching))))

(defun begin-watching (engine call)
  "Serve CALL, of Watch, from now on."
  (let ((watching (make-watching engine call)))
    (setf (watching-function watching)
          (lambda ()
            (advance watching (unless (eq sb-thread:*current-thread* (engine-attendant engine))
                                +changes-at-once+))))
    (add-listener engine watching)
    (rpc:on-end call (lambda () (end-watches watching)))
    (rpc:on-writable call (lambda ()
                            (setf (watching-room watching) t)
                            (advance watching +changes-at-once+)))
    (rpc:on-half-close call (lambda () (rpc:finish call)))
    (rpc:on-message call (lambda (request)
                           (sb-ext:atomic-push request (watching-requests watching))
                           (advance watching +changes-at-once+)))
    call))
