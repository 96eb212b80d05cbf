;;;; Watches. A stream of watches holds no thread: its call is kept, and advanced by whatever thread
;;;; brings news of the store, of the client's requests, or of room. A watch knows the revision that
;;;; it is to tell next; what it tells it reads from the store. So nothing is queued for a slow
;;;; client, and one that is slower than the store forgets is told that its changes are compacted.
;;;; Its requests wait, as those of all calls do, while it leaves answers unread. A request for
;;;; progress is answered when all watches of the stream have told what there was up to that.
;;;;
;;;; One thread at a time advances a stream: STATE is :idle, :busy while one does, or :again if
;;;; there is something new since it began to look. No lock is held while it sends.

(in-package #:clgrpc.memory)

(defconstant +most-revisions+ 1000 "One response tells the changes of at most so many revisions.")
(defconstant +most-octets+ 1048576 "It tells no further revision once it has so many octets.")

(defstruct (watch (:copier nil))
  "A watch of a stream."
  (number 0 :type (signed-byte 64) :read-only t) ; by which the stream's client knows it
  (start nil :type octets :read-only t) ; the first key of its range
  (end nil :type (or null octets) :read-only t) ; the end of that, nil for none
  (filters '() :type list :read-only t) ; :noput and :nodelete, what is not told
  (previous nil :type boolean :read-only t) ; tell what was there before, too
  (progress nil :type boolean :read-only t) ; tell now and then how far it is
  (next 0 :type (signed-byte 64))       ; the revision from which on it has told nothing
  (sent-ns 0 :type (integer 0)))        ; when something was sent last

(defstruct (watching (:constructor make-watching (engine call)) (:copier nil))
  "A stream of watches."
  (engine nil :type engine :read-only t) ; whose changes they tell
  (call nil :type rpc:call :read-only t) ; the stream
  (listener nil :type (or null function)) ; that ENGINE has
  (requests '() :type list)             ; that have come, the last first; changed by ATOMIC-UPDATE
  (answers (make-fifo) :type fifo :read-only t) ; to requests, which are to be sent
  (progress 0 :type (integer 0))        ; how many requests for progress are to be answered
  (watches '() :type list)              ; in the order in which they were made
  (number 0 :type (signed-byte 64))     ; that the next watch gets if it is free
  (room t :type boolean)                ; false from when there is no room until there is
  (state :idle :type (member :idle :busy :again))) ; see above

(declaim (sb-ext:freeze-type watch watching))

;;; What a watch has to tell

(defun told-p (watch change)
  "True if WATCH is to tell CHANGE."
  (let ((key (item-key (change-item change))) (end (watch-end watch)))
    (and (not (before-p key (watch-start watch)))
         (or (null end) (before-p key end))
         (not (member (if (removal-p change) :nodelete :noput) (watch-filters watch))))))

(defun event (watch change)
  "The message that tells CHANGE."
  (let ((item (change-item change)))
    (mvccpb:make-event :type (if (removal-p change) :delete :put)
                       :kv (if (removal-p change)
                               (mvccpb:make-key-value :key (item-key item)
                                                      :mod-revision (item-changed item))
                               (key-value item))
                       :prev-kv (and (watch-previous watch)
                                     (key-value (change-previous change))))))

(defun news (watch store)
  "The events that WATCH has to tell now, a list, and the revision from which on that leaves what
follows."
  (loop with events = '() and revisions = 0 and octets = 0
        for revision from (max (watch-next watch) (store-first store))
          to (store-revision store)
        until (or (= revisions +most-revisions+) (>= octets +most-octets+))
        do (let ((told (remove-if-not (lambda (change) (told-p watch change))
                                      (record-changes (record-at store revision)))))
             (when (plusp (length told))
               (incf revisions)
               (loop for change across told
                     do (incf octets (item-cost (change-item change)))
                        (push (event watch change) events))))
        finally (return (values (nreverse events) revision))))

(defun next-response (watch engine)
  "What WATCH has to send now, or nil; and the revision from which on it then has told nothing."
  (with-engine (engine)
    (let* ((store (engine-store engine))
           (revision (store-revision store))
           (now (engine-now engine))
           (number (watch-number watch)))
      (cond ((< (watch-next watch) (store-compacted store))
             (pb:make-watch-response :header (header revision) :watch-id number :canceled t
                                     :compact-revision (store-compacted store)))
            ((<= (watch-next watch) revision)
             (multiple-value-bind (events next) (news watch store)
               (values (and events
                            (pb:make-watch-response :header (header revision) :watch-id number
                                                    :events events))
                       next)))
            ((and (watch-progress watch)
                  (>= now (+ (watch-sent-ns watch) (engine-progress-ns engine))))
             (values (pb:make-watch-response :header (header revision) :watch-id number)
                     (watch-next watch)))))))

;;; Requests

(defun answer (watching response)
  "Have WATCHING send RESPONSE before anything else."
  (enqueue response (watching-answers watching)))

(defun find-watch (watching number)
  (find number (watching-watches watching) :key #'watch-number))

(defun refused (watching revision reason)
  "Answer that a watch cannot be created, for REASON, a text."
  (answer watching (pb:make-watch-response :header (header revision) :watch-id -1 :created t
                                           :canceled t :cancel-reason reason)))

(defun free-number (watching)
  (loop while (find-watch watching (watching-number watching))
        do (incf (watching-number watching)))
  (shiftf (watching-number watching) (1+ (watching-number watching))))

(defun create-watch (watching request)
  "Do REQUEST, a WatchCreateRequest. What has no key is of all keys."
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
            ((>= (length (watching-watches watching)) (engine-max-watches engine))
             (refused watching revision "etcdserver: too many watches"))
            (t
             (let ((watch (make-watch
                           :number (if (zerop number) (free-number watching) number)
                           :start start :end end
                           :filters (coerce (pb:watch-create-request-filters request) 'list)
                           :previous (pb:watch-create-request-prev-kv request)
                           :progress (pb:watch-create-request-progress-notify request)
                           :next (if (zerop from) (1+ revision) from)
                           :sent-ns (engine-now engine))))
               (setf (watching-watches watching)
                     (append (watching-watches watching) (list watch)))
               (answer watching (pb:make-watch-response :header (header revision) :created t
                                                        :watch-id (watch-number watch)))))))))

(defun drop-watch (watching watch)
  (setf (watching-watches watching) (remove watch (watching-watches watching))))

(defun do-request (watching request)
  "Do REQUEST, a WatchRequest."
  (multiple-value-bind (request kind) (pb:watch-request-request-union request)
    (case kind
      (:create-request (create-watch watching request))
      (:cancel-request
       (let ((watch (find-watch watching (pb:watch-cancel-request-watch-id request))))
         (when watch
           (drop-watch watching watch)
           (answer watching (pb:make-watch-response
                             :header (header (engine-revision (watching-engine watching)))
                             :watch-id (watch-number watch) :canceled t)))))
      (:progress-request (incf (watching-progress watching))))))

;;; Advancing a stream

(defun try-response (watching response)
  "Send RESPONSE, or return false if there is no room."
  ;; before, since there may be room again before this returns
  (setf (watching-room watching) nil)
  (when (rpc:try-send (watching-call watching) response)
    (setf (watching-room watching) t)))

(defun send-answers (watching)
  "Send the answers to requests; false if there is not room for all."
  (loop for answer = (first (fifo-items (watching-answers watching)))
        while answer
        always (try-response watching answer)
        do (dequeue (watching-answers watching))))

(defun send-news (watching watch)
  "Send what WATCH has to tell; false if there is not room for all."
  (loop
    (multiple-value-bind (response next) (next-response watch (watching-engine watching))
      (cond ((and response (not (try-response watching response))) (return nil))
            ((and response (pb:watch-response-canceled response))
             (drop-watch watching watch)
             (return t)))
      (when response (setf (watch-sent-ns watch) (engine-now (watching-engine watching))))
      (when next (setf (watch-next watch) next))
      (unless response (return t)))))

(defun told-revision (watching)
  "The revision up to which all watches of WATCHING have told everything."
  (loop with revision = (engine-revision (watching-engine watching))
        for watch in (watching-watches watching)
        do (setf revision (min revision (1- (watch-next watch))))
        finally (return revision)))

(defun send-progress (watching)
  "Answer the requests for progress of WATCHING, whose watches have told what there was."
  (loop while (and (plusp (watching-progress watching))
                   (try-response watching
                                 (pb:make-watch-response
                                  :header (header (told-revision watching)) :watch-id -1)))
        do (decf (watching-progress watching))))

(defun end-watching (watching)
  (rpc:finish (watching-call watching) :status :unavailable
                                       :message "etcdserver: server stopped"))

(defun take-requests (watching)
  "The requests that have come, the first first."
  (let ((requests '()))
    (sb-ext:atomic-update (watching-requests watching)
                          (lambda (all) (setf requests all) '()))
    (reverse requests)))

(defun advance-once (watching)
  "Do what there is to do for WATCHING, as far as there is room."
  (cond ((rpc:call-status (watching-call watching)))
        ((not (engine-open (watching-engine watching))) (end-watching watching))
        (t
         (dolist (request (take-requests watching)) (do-request watching request))
         (when (and (watching-room watching)
                    (send-answers watching)
                    (loop for watch in (watching-watches watching)
                          always (send-news watching watch)))
           (send-progress watching)))))

(defun advance (watching)
  "Do what there is to do for WATCHING, or have the thread that does so look again."
  (loop
    (case (watching-state watching)
      (:idle (when (eq :idle (compare-and-swap (watching-state watching) :idle :busy)) (return)))
      (:busy (when (eq :busy (compare-and-swap (watching-state watching) :busy :again))
               (return-from advance)))
      (t (return-from advance))))
  (loop
    ;; it may end at any time
    (handler-case (advance-once watching)
      (status:rpc-error ()))
    (when (eq :busy (compare-and-swap (watching-state watching) :busy :idle)) (return))
    (setf (watching-state watching) :busy)
    (sb-thread:barrier (:memory))))

(defun begin-watching (engine call)
  "Serve CALL, of Watch, from now on."
  (let ((watching (make-watching engine call)))
    (setf (watching-listener watching) (lambda () (advance watching)))
    (add-listener engine (watching-listener watching))
    (rpc:on-end call (lambda () (remove-listener engine (watching-listener watching))))
    (rpc:on-writable call (lambda ()
                            (setf (watching-room watching) t)
                            (advance watching)))
    (rpc:on-half-close call (lambda () (rpc:finish call)))
    (rpc:on-message call (lambda (request)
                           (sb-ext:atomic-push request (watching-requests watching))
                           (advance watching)))
    call))
