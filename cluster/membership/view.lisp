;;;; The view of a node: the members at a revision of the store, and the recent changes before it,
;;;; from which watchers continue. A view is changed by the thread that holds the lock of its
;;;; informer; a view reads neither store nor clock.

(in-package #:clgrpc.cluster)

(defconstant +remembered-revisions+ 1024
  "The number of revisions whose changes a view remembers. Older changes are read from the store.")

(defstruct (change (:constructor make-change (kind member)) (:copier nil))
  "A change of a cluster."
  (kind :joined :type (member :joined :updated :left :lost) :read-only t) ; the event
  ;; the member as it is afterwards, or its last state
  (member nil :type cluster-member :read-only t))

(declaim (sb-ext:freeze-type change))

(document-functions
  change-p "True of changes of a cluster."
  change-kind "Return the kind of CHANGE: :joined; :updated if the member has changed its
  description; :left if the member has announced that it leaves; or :lost if its membership has
  ended without an announcement, because its lease has ended or another process has taken its name."
  change-member "Return the member as it is after CHANGE or, if its membership has ended, as it was
  before.")

(defmethod print-object ((change change) stream)
  (print-unreadable-object (change stream)
    (format stream "~(~A~) ~A" (change-kind change) (change-member change))))

(defun member-changes (former member)
  "The list of changes that turn FORMER, a member or nil, into MEMBER, a member or nil."
  (flet ((gone () (make-change (if (eq :draining (member-state former)) :left :lost) former)))
    (cond ((and former member (= (member-generation former) (member-generation member)))
           (list (make-change :updated member)))
          (t (append (when former (list (gone)))
                     (when member (list (make-change :joined member))))))))

;;; The view

(defstruct (view (:copier nil))
  "The members of a cluster as of a revision, and the last changes."
  (members (make-hash-table :test 'equal) :type hash-table) ; the members by name
  (revision 0 :type (signed-byte 64))   ; the revision of the store to which they belong
  (first 0 :type (signed-byte 64))      ; all changes from this revision on are remembered
  (log (make-array +remembered-revisions+ :initial-element nil) :type simple-vector) ; a ring
  (count 0 :type index))                ; how many revisions have been put into LOG

(declaim (sb-ext:freeze-type view))

(define-printer (view view)
  "~D members, revision ~D" (hash-table-count (view-members view)) (view-revision view))

(defun view-list (view)
  (sort (loop for member being the hash-values of (view-members view) collect member)
        #'string< :key #'member-name))

(defun view-member (view name)
  (gethash name (view-members view)))

(defun log-slot (view number)
  "The place in LOG for the revision with NUMBER: a list of the revision and its changes."
  (svref (view-log view) (mod number +remembered-revisions+)))

(defun remember (view revision changes)
  "Note that CHANGES have led VIEW to REVISION."
  (let ((place (mod (view-count view) +remembered-revisions+)))
    (when (svref (view-log view) place)
      (setf (view-first view) (1+ (first (svref (view-log view) place)))))
    (setf (svref (view-log view) place) (cons revision changes))
    (incf (view-count view))))

(defun note-event (view name member revision)
  "Note that at REVISION the member with the name NAME is MEMBER or, if MEMBER is nil, that no
member has this name. Return the changes."
  (let ((changes (member-changes (view-member view name) member)))
    (if member
        (setf (gethash name (view-members view)) member)
        (remhash name (view-members view)))
    (setf (view-revision view) revision)
    (when changes
      (let ((last (and (plusp (view-count view)) (log-slot view (1- (view-count view))))))
        (if (and last (= revision (first last)))
            (nconc last (copy-list changes))
            (remember view revision changes))))
    changes))

(defun note-snapshot (view members revision)
  "Set the members of VIEW to MEMBERS, a list of all at REVISION, and return the changes that this
makes. The changes in between are not known, so VIEW forgets those before REVISION."
  (let* ((there (make-hash-table :test 'equal :size (1+ (length members))))
         (gone (progn
                 (dolist (member members) (setf (gethash (member-name member) there) member))
                 (remove-if (lambda (member) (gethash (member-name member) there))
                            (view-list view))))
         (changes (append (loop for member in gone append (member-changes member nil))
                          (loop for member in members
                                for former = (view-member view (member-name member))
                                unless (and former (equalp former member))
                                  append (member-changes former member)))))
    (fill (view-log view) nil)
    (setf (view-members view) there
          (view-revision view) revision
          (view-first view) (1+ revision)
          (view-count view) 0)
    changes))

(defun changes-from (view revision)
  "The changes at REVISION and later, a list of revisions and their changes, the oldest first; or
:forgotten if VIEW has forgotten some of these changes."
  (if (< revision (view-first view))
      :forgotten
      (let ((found '()))
        (loop for number from (1- (view-count view))
                downto (max 0 (- (view-count view) +remembered-revisions+))
              for slot = (log-slot view number)
              while (<= revision (first slot))
              do (push slot found))
        found)))
