;;;; Children: workflows that a step starts. Such a step is a fork, since it begins all of its
;;;; children, and a join, since it is done when all of them have ended. The functions here make
;;;; decisions like those in decision.lisp: they do not read the store.
;;;;
;;;; 1. When the step begins its state is :starting: a node has the errand to begin the children.
;;;; 2. The node begins the next of the children and notes them in the parent, in one transaction.
;;;;    So each child is begun once, and no child after the parent has ended. When all children are
;;;;    begun, the step is :joining.
;;;; 3. The end of a child is an errand: it is reported to the parent. The parent notes each child's
;;;;    end once, with a copy of its result. The last end makes the result of the step from the
;;;;    results of all.
;;;; 4. The end of a parent that has children is an errand: it cancels them, unless the step
;;;;    abandons them.
;;;;
;;;; An id may be used again, and an errand of a former workflow with that id may arrive late. So
;;;; child and parent record the child's origin: the revision of the parent's state that has started
;;;; the child. Every later workflow of the parent's id has later revisions.
;;;;
;;;; The definitions of the children are not in the state but in a payload, children/STEP. The
;;;; result of one child is in child/STEP/INDEX until the step is done.

(in-package #:clgrpc.workflow)

;;; They are begun

(defun children-begun (step)
  "How many children of STEP, a StepState, have begun."
  (count :any (pb:step-state-children step) :key #'pb:child-state-status :test-not #'eq))

(defun starting-step (state)
  "The current step of STATE if children of it must be begun; nil if none must be begun."
  (let ((step (state-step state)))
    (and (running-p state) step (eq :starting (pb:step-state-status step)) step)))

(defun child-draft (state origin child place input now limits)
  "The finished draft of CHILD, a Child, at PLACE of the current step of STATE, whose revision is
ORIGIN. INPUT, octets, is the input of a child that has no input of its own."
  (let ((number (pb:step-state-number (state-step state))) (id (pb:workflow-state-id state)))
    (finish-draft
     (begin-workflow
      (pb:make-start-request :id (child-id id number place) :type (pb:child-type child)
                             :steps (pb:child-steps child) :timeout-ms (pb:child-timeout-ms child)
                             :input (if (pb:has-child-input child) (pb:child-input child) input))
      now limits
      :traceparent (pb:workflow-state-traceparent state)
      :parent (pb:make-parent :id id :step number :index place :depth (1+ (state-depth state))
                              :origin origin)))))

(defun note-children-begun (draft count)
  "Note that the next COUNT children of the step under way have begun."
  (let* ((step (draft-step draft)) (number (pb:step-state-number step))
         (children (pb:step-state-children step)) (begun (children-begun step)))
    (loop for place from begun below (+ begun count)
          do (setf (pb:child-state-status (elt children place)) :running
                   (pb:child-state-origin (elt children place)) (draft-revision draft))
             (add-event draft :child-started
                        :step step
                        :text (child-id (pb:workflow-state-id (draft-state draft)) number place)))
    (when (= (+ begun count) (length children)) (setf (pb:step-state-status step) :joining))
    t))

(defun former-child-p (state child)
  "True if the workflow of STATE has ended and was the same child as CHILD, a draft, but of a former
workflow with the parent's id."
  (let ((former (pb:workflow-state-parent state))
        (parent (pb:workflow-state-parent (draft-state child))))
    (and former
         (not (running-p state))
         (string= (pb:parent-id parent) (pb:parent-id former))
         (< (pb:parent-origin former) (pb:parent-origin parent)))))

(defun fail-children (draft number reason)
  "Make the step NUMBER fail, since its children cannot be begun, because of REASON."
  (let ((step (starting-step (draft-state draft))))
    (when (and step (= number (pb:step-state-number step)))
      (fail-at-step draft step reason)
      t)))

;;; They end

(defstruct (child-end (:constructor make-child-end (place origin result)) (:copier nil))
  "The report that a child has ended."
  (place 0 :type (integer 0) :read-only t) ; the place of the child in its step
  (origin 0 :type (integer 0) :read-only t) ; the origin of the child
  (result nil :type pb:child-result :read-only t)) ; the child's result

(declaim (sb-ext:freeze-type child-end))

(defun child-end-wanted-p (step end)
  "True if STEP, a StepState, waits for END."
  (let ((children (pb:step-state-children step)) (place (child-end-place end)))
    (and (< place (length children))
         (eq :running (pb:child-state-status (elt children place)))
         (= (child-end-origin end) (pb:child-state-origin (elt children place))))))

(defun ends-to-note (state number ends)
  "The elements of ENDS, a list of CHILD-ENDs of the step NUMBER, for which STATE waits."
  (let ((step (state-step state)))
    (and (running-p state) step (= number (pb:step-state-number step))
         (remove-if-not (lambda (end) (child-end-wanted-p step end)) ends))))

(defun joined-by-p (state number ends)
  "True if noting ENDS completes the step NUMBER of STATE."
  (let ((step (state-step state)) (new (ends-to-note state number ends)))
    (and new (eq :joining (pb:step-state-status step))
         (= (length new)
            (count :running (pb:step-state-children step) :key #'pb:child-state-status)))))

(defun note-end (draft step end)
  "Note END, the end of a child of STEP."
  (let ((child (elt (pb:step-state-children step) (child-end-place end)))
        (result (child-end-result end)))
    (setf (pb:child-state-status child) (pb:child-result-status result)
          (pb:child-state-octets child) (protobuf:serialized-size result))
    (add-event draft :child-ended :step step
                                  :text (format nil "~A ~(~A~)" (pb:child-result-id result)
                                                (pb:child-result-status result)))))

(defun child-failure (step ends)
  "The reason, a text, why STEP fails because of ENDS; nil if it does not fail."
  (let ((end (and (not (pb:children-report-failures (pb:step-children (pb:step-state-step step))))
                  (find :completed (mapcar #'child-end-result ends)
                        :test-not #'eq :key #'pb:child-result-status))))
    (and end
         (format nil "the child ~A has ~:[been cancelled~;failed~]: ~A" (pb:child-result-id end)
                 (eq :failed (pb:child-result-status end)) (pb:child-result-reason end)))))

(defun results-size (step)
  "The length of the ChildResults of STEP for the children that have ended, each with its tag and
its length."
  (loop for child across (pb:step-state-children step) sum (+ 6 (pb:child-state-octets child))))

(defun join-children (draft step results)
  "Complete STEP, all of whose children have ended, with RESULTS, ChildResults in their order."
  (let* ((state (draft-state draft)) (number (pb:step-state-number step))
         (octets (protobuf:serialize (pb:make-child-results :results results))))
    (note-removal draft (payload-key state (format nil "child/~D/" number)))
    (pass-step draft step :bringing t :octets (length octets)
                          :key (add-payload draft (payload-key state (format nil "out/~D" number))
                                            octets))
    (add-event draft :step-done :step step)
    (advance draft)))

(defun note-child-ends (draft number ends former)
  "Note ENDS, CHILD-ENDs of children of the step NUMBER. If these are the last ends, FORMER is an
alist of places and ChildResults of the children whose ends were noted earlier."
  (let* ((state (draft-state draft)) (limits (draft-limits draft))
         (joined (joined-by-p state number ends)) (ends (ends-to-note state number ends)))
    (when ends
      (let ((step (state-step state)))
        (dolist (end ends) (note-end draft step end))
        (let ((failure (or (child-failure step ends)
                           (and (< (limits-max-payload-octets limits) (results-size step))
                                "the results of the children are too large together")))
              (results (loop for end in ends
                             collect (cons (child-end-place end) (child-end-result end)))))
          (cond (failure (fail-at-step draft step failure))
                (joined (join-children draft step
                                       (mapcar #'cdr (sort (append results former) #'<
                                                           :key #'car))))
                (t (loop for (place . result) in results
                         do (push (cons (child-key state number place)
                                        (protobuf:serialize result))
                                  (draft-payloads draft))))))
        t))))

;;; The ends of workflows

(defun children-left (state)
  "The step of STATE, of a workflow that has ended, whose children must be cancelled; nil if no
children must be cancelled."
  (let* ((step (state-step state)) (definition (and step (pb:step-state-step step))))
    (and definition
         (eq :children (pb:step-action-case definition))
         (not (pb:children-abandon (pb:step-children definition)))
         (plusp (children-begun step))
         step)))

(defun end-errands (draft)
  "The errands for nodes that arise because DRAFT ends its workflow: an alist of their names and of
texts. Each text has all data that its errand needs, so that the errand can be done after the
workflow is deleted."
  (let* ((state (draft-state draft)) (old (draft-old draft))
         (parent (pb:workflow-state-parent state))
         (left (children-left state)))
    (unless (or (running-p state) (and old (not (running-p old))))
      (append (and parent (list (cons "end" (protobuf:serialize parent))))
              (and left (list (cons "cancel" (format nil "~D ~D ~D" (pb:step-state-number left)
                                                     (children-begun left)
                                                     (draft-revision draft)))))))))

(defun cancel-child (draft id number last)
  "Cancel the workflow of DRAFT if it is a child of the step NUMBER of the workflow ID, with the
origin LAST or an earlier one, since that workflow has ended before these children."
  (let* ((state (draft-state draft)) (parent (pb:workflow-state-parent state)))
    (when (and (running-p state) parent (string= id (pb:parent-id parent))
               (= number (pb:parent-step parent))
               (<= (pb:parent-origin parent) last))
      (end-workflow draft :cancelled (format nil "its parent ~A has ended" id))
      t)))
