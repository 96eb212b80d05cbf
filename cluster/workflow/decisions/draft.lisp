;;;; Drafts: the next states of workflows. A draft has a copy of the state, which decisions change,
;;;; and the other data that are stored with it: events for the history, and payloads.

(in-package #:clgrpc.workflow)

(defstruct (draft (:constructor %make-draft) (:copier nil))
  "A change of a workflow that is not complete yet."
  (old nil :type (or null pb:workflow-state) :read-only t) ; the state in the store, or nil
  (revision 0 :type (integer 0) :read-only t) ; the store's revision of OLD; 0 if OLD is nil
  (state nil :type pb:workflow-state :read-only t) ; the next state
  (now 0 :type (integer 0) :read-only t) ; the time, in milliseconds since 1970
  (chance 0 :type (real 0 1) :read-only t) ; a random number, for pauses
  (limits nil :type limits :read-only t) ; the limits of the node that makes it
  (events '() :type list)               ; Events, the last one first
  (payloads '() :type list)             ; an alist of keys below data/ID/ and octets
  ;; an alist of keys and octets of payloads that STATE itself has
  (small '() :type list)
  (history '() :type list)              ; Changes that are to have a key of their own
  ;; (from . to) of ranges of keys below the root that it removes; its own payloads are in none of
  ;; them
  (removals '() :type list)
  (octets nil :type (or null octets))   ; the layout of STATE in the store, once the draft is
                                        ; finished
  (forgotten nil :type boolean))        ; true: nothing of the workflow remains

(declaim (sb-ext:freeze-type draft))

(defun draft-of (state now limits &key (chance 1) (revision 0))
  "Return a draft of the state after STATE at the time NOW; STATE is not changed. CHANCE, from 0 to
1, is random; REVISION is the store's revision of STATE."
  (%make-draft :old state :state (protobuf:copy-message state) :now now :chance chance
               :revision revision :limits limits))

(define-printer (draft draft)
  "~A ~(~A~) ~{~(~A~)~^ ~}" (pb:workflow-state-id (draft-state draft))
  (pb:workflow-state-status (draft-state draft))
  (reverse (mapcar #'pb:event-kind (draft-events draft))))

(defun add-event (draft kind &key step (fence 0) (worker "") (text ""))
  "Note that an event of KIND happens in DRAFT, to STEP, a StepState or nil."
  (push (pb:make-event :kind kind :step (if step (pb:step-state-number step) 0)
                       :attempt (if step (pb:step-state-attempts step) 0)
                       :fence fence :worker worker :text (short-text text))
        (draft-events draft)))

(defun add-small-payload (draft key octets)
  "Do what ADD-PAYLOAD does, for few OCTETS. They are stored in the state itself, unless it already
has the same octets."
  (let* ((state (draft-state draft)) (payloads (pb:workflow-state-payloads state))
         (same (find octets payloads :key #'pb:payload-octets :test #'equalp)))
    (cond (same (pb:payload-key same))
          (t (push (cons key octets) (draft-small draft))
             (setf (pb:workflow-state-payloads state)
                   (concatenate 'vector payloads (list (pb:make-payload :key key :octets octets))))
             key))))

(defun add-payload (draft key octets)
  "Plan to put OCTETS at KEY, below data/ID/, unless OCTETS are empty or another key has the same
octets. Return the key of the payload, or \"\" for no octets."
  (cond ((zerop (length octets)) "")
        ((<= (length octets) +small-octets+) (add-small-payload draft key octets))
        (t (push (cons key octets) (draft-payloads draft))
           key)))

(defun run-key (run name)
  "The key below data/ID/ of the payload NAME of the run RUN of a workflow."
  (if (zerop run) name (format nil "~D/~A" run name)))

(defun payload-key (state name)
  "The key below data/ID/ of the payload NAME of the present run of STATE."
  (run-key (pb:workflow-state-run state) name))

(defun note-removal (draft name)
  "Plan to remove, with DRAFT, payloads of its workflow: the one at NAME below data/ID/ or, if NAME
ends with a slash, all payloads whose keys begin with NAME."
  (let ((key (key "" "data" (pb:workflow-state-id (draft-state draft)) name)))
    (push (cons key (if (uiop:string-suffix-p key "/")
                        (key-behind key)
                        (format nil "~A~C" key (code-char 0))))
          (draft-removals draft))))

(defun state-step (state)
  "The StepState of STATE that is under way; nil if no step is left."
  (let ((steps (pb:workflow-state-steps state))
        (place (- (pb:workflow-state-current state) (pb:workflow-state-steps-before state))))
    (and (< place (length steps)) (elt steps place))))

(defun draft-step (draft)
  (state-step (draft-state draft)))

(defun running-p (state)
  (eq :running (pb:workflow-state-status state)))

(defun later (now ms)
  "The time MS after NOW."
  (+ now (min ms +longest-ms+)))

(defun draft-change (draft)
  "The Change of DRAFT, for the history."
  (let ((state (draft-state draft)))
    (pb:make-change :number (pb:workflow-state-version state)
                    :unix-ms (draft-now draft) :events (reverse (draft-events draft))
                    :status (pb:workflow-state-status state))))

(defun note-change-made (draft)
  "Make the Change of DRAFT the last Change of its state. If many Changes come before it, move these
to a key of their own. Store in the previous Change its revision, which is known by now."
  (let* ((state (draft-state draft)) (changes (coerce (pb:workflow-state-changes state) 'list)))
    (when changes
      (setf (pb:change-revision (first (last changes))) (draft-revision draft)))
    (when (<= +history-chunk+ (length changes))
      (setf (draft-history draft) (shiftf changes '())))
    (setf (pb:workflow-state-changes state) (append changes (list (draft-change draft))))))
