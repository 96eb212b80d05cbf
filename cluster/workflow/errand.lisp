;;;; Errands: changes that are due without a call, in other workflows than the one whose change has
;;;; caused them. An errand is a key among those of timers, index/due/SHARD/TIME/ERRAND/ID. The
;;;; transaction that makes an errand necessary puts its key; the transaction that does the errand
;;;; removes the key, and so does a node that finds nothing left to do. So an errand is done even if
;;;; nodes die, and takes effect once.
;;;;
;;;;   start     children of the workflow ID are to be begun
;;;;   end       the child ID has ended, which is to be reported to its parent
;;;;   cancel    the workflow ID has ended, and its children are to be cancelled
;;;;   schedule  the schedule ID is due, see scheduler.lisp
;;;;
;;;; See children.lisp for the decisions of the other errands.

(in-package #:clgrpc.workflow)

(defconstant +most-ends+ 40
  "The maximum number of ends of children that one change of their parent notes. Each of these ends
needs two operations: for its result, and for the removal of its errand.")

(defstruct (errand (:copier nil))
  "An errand in the store."
  (name "" :type string :read-only t)   ; the kind of errand: one of the names above
  (id "" :type string :read-only t)     ; the id of its workflow
  (key "" :type string :read-only t)    ; the key in the store, below the root
  ;; for an errand `end`, the parent to which the end is reported
  (parent nil :type (or null pb:parent) :read-only t)
  ;; of a `cancel` errand: the step, its children, their last origin
  (numbers '() :type list :read-only t))

(declaim (sb-ext:freeze-type errand))

(define-printer (errand errand)
  "~A ~A" (errand-name errand) (errand-id errand))

(defun value-parent (octets)
  "The Parent in OCTETS, the value of an `end`; nil if no node has put them."
  (handler-case (let ((parent (protobuf:parse-message 'pb:parent octets)))
                  (and (name-p (pb:parent-id parent)) parent))
    (protobuf:protobuf-error () nil)))

(defun value-numbers (text)
  "The three numbers of which TEXT, the value of a `cancel`, consists; nil if no node has put it."
  (let ((numbers (loop for part in (uiop:split-string text)
                       collect (and (<= 1 (length part) 19) (every #'digit-char-p part)
                                    (parse-integer part)))))
    (and (= 3 (length numbers)) (notany #'null numbers)
         (<= (second numbers) +most-children+)
         numbers)))

(defun entry-errand (node entry name id)
  "The ERRAND NAME of the workflow ID in ENTRY of NODE's store; nil if no node has put it."
  (let ((parent (and (string= "end" name) (value-parent (etcd:entry-value entry))))
        (numbers (and (string= "cancel" name) (value-numbers (entry-text entry)))))
    (when (and (name-p id) (or parent numbers (member name '("start" "schedule") :test #'string=)))
      (make-errand :name name :id id :key (entry-name entry (node-root node))
                   :parent parent :numbers numbers))))

(defun note-errand-done (draft errand)
  (let ((key (errand-key errand)))
    (push (cons key (format nil "~A~C" key (code-char 0))) (draft-removals draft))))

(defun forget-errand (node errand)
  "Remove ERRAND, because nothing is left to do."
  (etcd:remove-entry (node-etcd node) (node-key node (errand-key errand))))

;;; Children are begun

(defun next-children (node state origin children input)
  "Return finished drafts of the children that the current step of STATE begins next: the first of
CHILDREN, a Children, that are not begun, as many as one transaction takes. ORIGIN is the revision
of STATE. INPUT is the input of children that have no input of their own."
  (loop with operation-count = 0
        with octets = (protobuf:serialized-size state)
        with all = (pb:children-children children)
        for place from (children-begun (state-step state)) below (length all)
        for draft = (child-draft state origin (elt all place) place input (node-now node)
                                 (node-limits node))
        do (incf operation-count (length (draft-operations (node-root node) draft)))
           (incf octets (put-octets draft))
        while (or (null drafts)
                  ;; some are the parent's
                  (and (<= operation-count (- +most-operations+ 10)) (<= octets +bulk-octets+)))
        collect draft into drafts
        finally (return drafts)))

(defun check-child-inputs (children input)
  "Signal TOO-LARGE if INPUT is too long for all of CHILDREN that get it."
  (let ((octets (* (length input) (count-if-not #'pb:has-child-input
                                                (pb:children-children children)))))
    (when (> octets +most-child-inputs+)
      (refuse-size :too-large :child-inputs +most-child-inputs+ octets
                   "the inputs of the children are too large together"))))

(defun begin-children (node cached-state drafts)
  "Put DRAFTS, of children of CACHED-STATE, into the store, and note them in that state, unless the
state has changed meanwhile. If a former child has a child's id, delete the former one, so that the
next try succeeds; signal WORKFLOW-EXISTS if another workflow has the id."
  (let ((parent (decide node cached-state
                        (lambda (draft) (note-children-begun draft (length drafts))))))
    (unless (put-drafts node (cons parent drafts)
                        (loop for draft in (cons parent drafts)
                              append (draft-operations (node-root node) draft)))
      (dolist (draft drafts)
        (let* ((id (pb:workflow-state-id (draft-state draft))) (entry (fetch-entry node id)))
          (cond ((null entry))
                ((former-child-p (entry-state entry) draft)
                 (change-workflow node id (lambda (former)
                                            (and (former-child-p (draft-state former) draft)
                                                 (delete-state former)))))
                (t (refuse :workflow-exists "another workflow has the id ~A" id))))))))

(defun start-children (node id)
  "Begin the children of the current step of the workflow ID, if it is a step that starts children.
If a child cannot be begun, the step fails."
  (loop for cached-state = (entry-cached-state node (fetch-entry node id))
        for state = (and cached-state (cached-state-state cached-state))
        for step = (and state (starting-step state))
        while step
        do (let ((number (pb:step-state-number step))
                 (revision (cached-state-revision cached-state)))
             (handler-case
                 (let ((children (protobuf:parse-message
                                  'pb:children
                                  (fetch-payload node state (children-key state number))))
                       (input (fetch-payload node state (input-key state))))
                   (check-child-inputs children input)
                   (begin-children node cached-state
                                   (next-children node state revision children input)))
               ((or too-large invalid-request workflow-exists etcd:invalid-request)
                (condition)
                 (change-workflow node id
                                  (lambda (draft)
                                    ;; otherwise another node may have begun the children
                                    (and (= revision (draft-revision draft))
                                         (fail-children
                                          draft number
                                          (bounded-text condition :limit +longest-text+))))))))))

;;; They end

(defun child-result (node errand parent)
  "The ChildResult to report to PARENT for ERRAND, of a child that has ended."
  (let* ((id (errand-id errand)) (entry (fetch-entry node id)) (state (entry-state entry))
         (result (and state (not (running-p state)) (pb:workflow-state-parent state)
                      (protobuf:message= parent (pb:workflow-state-parent state))
                      (fetch-result node state))))
    (if result
        (pb:make-child-result :id id :status (pb:workflow-state-status state) :result result
                              :reason (pb:workflow-state-reason state))
        (pb:make-child-result :id id :status :cancelled
                              :reason "the child was deleted before its parent got its result"))))

(defun former-ends (node state number)
  "The ends of children of the step NUMBER of STATE that were noted before: an alist from the
children's places to ChildResults."
  (let ((prefix (data-key (node-root node) (pb:workflow-state-id state)
                          (payload-key state (format nil "child/~D/" number)))))
    (loop for entry in (etcd:fetch-entries (node-etcd node) :prefix prefix)
          for place = (parse-integer (or (entry-name entry prefix) "") :junk-allowed t)
          when place
            collect (cons place
                          (protobuf:parse-message 'pb:child-result (etcd:entry-value entry))))))

(defun tell-parent (node id number ends errands)
  "Report ENDS, CHILD-ENDs of children of step NUMBER, to the workflow ID, as ERRANDS ask."
  (flet ((decision (draft)
           (let ((state (draft-state draft)))
             (when (note-child-ends draft number ends (and (joined-by-p state number ends)
                                                           (former-ends node state number)))
               (dolist (errand errands t) (note-errand-done draft errand))))))
    (unless (handler-case (nth-value 1 (change-workflow node id #'decision))
              (workflow-not-found () nil))
      ;; the parent knows of the end, or has ended, or does not exist any more
      (dolist (errand errands) (forget-errand node errand)))))

(defun tell-some (node id number group)
  "Report ends of children to the step NUMBER of the workflow ID. GROUP is a list of (ERRAND .
PARENT): the errand of a child that has ended, and the PARENT message of that child."
  (for-one (node id)
    (tell-parent node id number
                 (loop for (errand . parent) in group
                       collect (make-child-end (pb:parent-index parent) (pb:parent-origin parent)
                                               (child-result node errand parent)))
                 (mapcar #'car group))))

(defun tell-parents (node errands)
  "Report the ends of children that ERRANDS, a list, ask for. Errands for one step are done
together, as many as fit into one change. Return the ids of the workflows that were changed."
  (let ((groups (make-hash-table :test 'equal)) (ids '()))
    (dolist (errand errands)
      (push (errand-id errand) ids)
      (unless (stuck-p node (errand-id errand))
        (let ((parent (errand-parent errand)))
          (push (cons errand parent)
                (gethash (list (pb:parent-id parent) (pb:parent-step parent)) groups)))))
    (loop for (id number) being the hash-keys of groups using (hash-value group)
          do (push id ids)
             (loop while group
                   do (tell-some node id number
                                 (loop repeat +most-ends+ while group collect (pop group)))))
    ids))

(defun cancel-children (node errand)
  "Cancel the children of ERRAND's workflow, which has ended."
  (let ((id (errand-id errand)))
    (destructuring-bind (number count last) (errand-numbers errand)
      (let ((ids (loop for place below count collect (child-id id number place))))
        (change-together node ids (lambda (draft) (cancel-child draft id number last)))
        (unless (some (lambda (id) (stuck-p node id)) ids) (forget-errand node errand))))))
