;;;; Searches: lists of workflows by status, type and times, the newest first. A search reads the
;;;; index, whose entries have all fields by which it selects, and then only the workflows that it
;;;; lists. The time of the start bounds the part of the index that is read. The number of entries
;;;; that one call reads is bounded; the next call continues at the last entry that this one has
;;;; read.
;;;;
;;;; A position in the index is AGE/ID, the end of its keys, which remains the same when the status
;;;; of the workflow changes. So pages of all statuses, which merge the parts of the index, neither
;;;; miss a workflow nor list it twice.

(in-package #:clgrpc.workflow)

(defconstant +list-page+ 100 "The maximum number of workflows of a page, and the default.")
(defconstant +most-looked-at+ 2000
  "The maximum number of entries of the index that one call of List reads.")
(defconstant +index-page+ 500 "The number of entries of the index that are fetched at once.")
(defparameter *statuses* '(:running :completed :failed :cancelled))

(defstruct (index-entry (:copier nil))
  "The fields of a workflow in the index."
  (position "" :type string :read-only t) ; the position, AGE/ID
  (type "" :type string :read-only t)   ; the type of the workflow
  ;; the end, in milliseconds since 1970; 0: the workflow runs
  (ended 0 :type (integer 0) :read-only t)
  (octets 0 :type (integer 0) :read-only t)) ; about its octets in the store, once it has ended

(declaim (sb-ext:freeze-type index-entry))

(defun index-entry-id (index-entry)
  (let ((position (index-entry-position index-entry)))
    (subseq position (1+ (position #\/ position)))))

(defun entry-index-entry (entry prefix)
  "The index-entry in ENTRY of the store, whose key begins with PREFIX; nil if no node has put it."
  (let ((position (entry-name entry prefix)) (text (entry-text entry)))
    (multiple-value-bind (ended space) (parse-integer text :junk-allowed t)
      (multiple-value-bind (octets end) (parse-integer text :start space :junk-allowed t)
        (when (and position (find #\/ position) (typep ended '(integer 0))
                   (typep octets '(integer 0)) (< end (length text)))
          (make-index-entry :position position :ended ended :octets octets
                            :type (subseq text (1+ end))))))))

;;; Requests

(defun ends-asked-for-p (request)
  (or (plusp (pb:list-request-ended-from-unix-ms request))
      (plusp (pb:list-request-ended-before-unix-ms request))))

(defun searched-statuses (request)
  "The statuses that REQUEST, a ListRequest, selects."
  (let ((status (pb:list-request-status request)))
    (status-text status)                ; is it one?
    (cond ((not (eq :any status)) (list status))
          ((ends-asked-for-p request) (remove :running *statuses*))
          (t *statuses*))))

(defun search-times (request)
  "The times in REQUEST, a ListRequest; 0 for each that it lacks."
  (list (pb:list-request-started-from-unix-ms request)
        (pb:list-request-started-before-unix-ms request)
        (pb:list-request-ended-from-unix-ms request)
        (pb:list-request-ended-before-unix-ms request)))

(defun search-bounds (request)
  "Two values: the position in the index from which REQUEST searches, and the one before which it
stops."
  (let* ((from (pb:list-request-started-from-unix-ms request))
         ;; a workflow that ended before some time has begun before that time
         (before (find-if #'plusp (sort (list (pb:list-request-started-before-unix-ms request)
                                              (pb:list-request-ended-before-unix-ms request))
                                        #'<)))
         (after (pb:list-request-after request))
         (begin (if before (age-text (1- before)) "")))
    (unless (every (lambda (ms) (<= 0 ms +longest-ms+)) (search-times request))
      (refuse :invalid-request "a time of the search is negative or too far away"))
    (values (if (string< begin after) (format nil "~A~C" after (code-char 0)) begin)
            (if (plusp from) (age-text (1- from)) "g"))))

(defun wanted-entry-p (request index-entry)
  "True if REQUEST selects INDEX-ENTRY, which is within the bounds of REQUEST."
  (let ((type (pb:list-request-type request)) (ended (index-entry-ended index-entry))
        (before (pb:list-request-ended-before-unix-ms request)))
    (and (or (string= "" type) (string= type (index-entry-type index-entry)))
         (or (not (ends-asked-for-p request))
             (and (plusp ended)
                  (<= (pb:list-request-ended-from-unix-ms request) ended)
                  (or (zerop before) (< ended before)))))))

;;; The index

(defun read-part (node entries prefix &key to limit revision)
  "Return two values: the index-entries in ENTRIES, and true if there may be more. ENTRIES are the
first LIMIT before TO in the part of the index whose keys begin with PREFIX. If other programs have
put all entries that were read, the next ones are read, as they were at REVISION."
  (loop
    (let ((found (loop for entry in entries
                       for index-entry = (entry-index-entry entry prefix)
                       when index-entry collect index-entry))
          (full (= limit (length entries))))
      (when (or found (not full)) (return (values found full)))
      (setf entries (etcd:fetch-entries (node-etcd node)
                                        :from (key-after (first (last entries)))
                                        :to to :limit limit :revision revision)))))

(defun workflow-index-page (node statuses from to)
  "Two values: the next entries of the index from the position FROM on, before TO, merged from its
parts for STATUSES, in order; and true if there may be more."
  (let* ((most (floor +index-page+ (length statuses)))
         (prefixes (loop for status in statuses
                         collect (node-key node "by" (status-text status) "")))
         (lists '()) (known '()))
    (flet ((range (prefix)
             (list :from (format nil "~A~A" prefix from) :to (format nil "~A~A" prefix to)
                   :limit most)))
      (multiple-value-bind (done parts revision)
          (etcd:transact (node-etcd node) :then (loop for prefix in prefixes
                                                      collect (list* :get-all (range prefix))))
        (declare (ignore done))
        (loop for part in parts
              for prefix in prefixes
              do (multiple-value-bind (list more)
                     (read-part node part prefix :to (getf (range prefix) :to) :limit most
                                                 :revision revision)
                   (push list lists)
                   ;; nothing is known after the last entry of a part that has more
                   (when more (push (index-entry-position (first (last list))) known))))))
    (let ((end (first (sort known #'string<))))
      (values (loop for index-entry in (sort (apply #'append lists) #'string<
                                             :key #'index-entry-position)
                    until (and end (string< end (index-entry-position index-entry)))
                    collect index-entry)
              (and end t)))))

(defun find-entries (node request limit)
  "Two values: the index-entries that REQUEST asks for, at most LIMIT; and the position where the
next page begins, or \"\"."
  (let ((statuses (searched-statuses request)) (found '()) (looked-at 0))
    (multiple-value-bind (from to) (search-bounds request)
      (loop
        (multiple-value-bind (page more)
            (if (string< from to) (workflow-index-page node statuses from to) '())
          (loop for (index-entry . rest) on page
                for position = (index-entry-position index-entry)
                do (incf looked-at)
                   (when (wanted-entry-p request index-entry) (push index-entry found))
                   (when (or (= limit (length found)) (= looked-at +most-looked-at+))
                     (return-from find-entries
                       (values (nreverse found) (if (or rest more) position ""))))
                   (setf from (format nil "~A~C" position (code-char 0))))
          (unless more (return (values (nreverse found) ""))))))))

;;; The answer

(defun summary (state)
  (let ((step (state-step state)))
    (pb:make-workflow-summary
     :id (pb:workflow-state-id state) :type (pb:workflow-state-type state)
     :status (pb:workflow-state-status state) :version (pb:workflow-state-version state)
     :started-unix-ms (pb:workflow-state-started-unix-ms state)
     :ended-unix-ms (pb:workflow-state-ended-unix-ms state)
     :current (pb:workflow-state-current state)
     :steps (+ (length (pb:workflow-state-steps state)) (pb:workflow-state-steps-before state)
               (pb:workflow-state-steps-after state))
     :step (if step (step-text step) "") :reason (pb:workflow-state-reason state))))

(defun search-workflows (node request)
  "The ListReply to REQUEST. Refuse a wrong request."
  (let* ((asked (pb:list-request-limit request))
         (limit (if (zerop asked) +list-page+ (min asked +list-page+))))
    (multiple-value-bind (found next) (find-entries node request limit)
      (pb:make-list-reply
       :workflows (loop for entry in (fetch-states node (mapcar #'index-entry-id found))
                        for state = (readable-state entry)
                        when state collect (summary state))
       :next next))))
