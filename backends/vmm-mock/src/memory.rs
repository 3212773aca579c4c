//! Frames, the mappings that show them, and the work that uses them.

use crate::bytes::Bytes;
use crate::order::Before;
use crate::stream::{BIND_STREAM, Streams};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use vmm_core::device::{AddrRange, FrameKind, Mapping, MemoryInfo};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, FrameHandle, StreamId};

/// The sentence that says what was wrong.
type Checked<T> = Result<T, &'static str>;

/// A part of a frame, as seen at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) frame: FrameHandle,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) addr: DeviceAddr,
}

impl Segment {
    pub(crate) fn span(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }

    /// The segment without its first `len` bytes.
    pub(crate) fn skip(&self, len: u64) -> Self {
        Self {
            frame: self.frame,
            offset: self.offset + len,
            len: self.len - len,
            addr: self.addr.offset(len),
        }
    }

    pub(crate) fn shares_bytes_with(&self, other: &Self) -> bool {
        self.frame == other.frame && overlap(&self.span(), &other.span())
    }
}

/// Queued work that uses a part of a frame.
#[derive(Clone, Debug)]
struct Use {
    stream: StreamId,
    position: u64,
    end: u64,
    addr: DeviceAddr,
    span: Range<u64>,
    writes: bool,
}

#[derive(Debug)]
struct Frame {
    len: u64,
    kind: FrameKind,
    mappings: u32,
    /// Its one address, on a device that cannot map.
    fixed: Option<DeviceAddr>,
    /// When its last unbind is done, in logical nanoseconds.
    unbound_at: u64,
    bytes: Bytes,
    /// Work that uses the frame. What has ended is removed when more is added.
    uses: Vec<Use>,
}

/// A bind that the device carries out itself, in the order of its bind stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    pub(crate) position: u64,
    pub(crate) end: u64,
}

#[derive(Debug)]
struct Mapped {
    len: u64,
    frame: FrameHandle,
    access: bool,
    /// Other devices that have access.
    peers: Vec<DeviceOrdinal>,
    /// What made the mapping; `None` if it existed at once.
    bind: Option<Bind>,
}

/// All physical memory of a device and all mappings.
///
/// Invariants: mappings do not overlap; `used` is the sum of the lengths of frames on the device;
/// each frame counts its mappings.
#[derive(Debug)]
pub(crate) struct Memory {
    total: u64,
    used: u64,
    /// What others on the same card have.
    other: u64,
    next_handle: u64,
    frames: HashMap<FrameHandle, Frame>,
    mappings: BTreeMap<u64, Mapped>,
}

impl Memory {
    pub(crate) fn new(total: u64) -> Self {
        Self {
            total,
            used: 0,
            other: 0,
            next_handle: 1,
            frames: HashMap::new(),
            mappings: BTreeMap::new(),
        }
    }

    pub(crate) fn info(&self) -> MemoryInfo {
        let taken = self.used.saturating_add(self.other);
        MemoryInfo { free: self.total.saturating_sub(taken), total: self.total }
    }

    pub(crate) fn set_other(&mut self, bytes: u64) {
        self.other = bytes;
    }

    /// `None` if there is not enough memory.
    pub(crate) fn make(&mut self, len: u64, kind: FrameKind) -> Option<FrameHandle> {
        if kind != FrameKind::Host {
            if len > self.info().free {
                return None;
            }
            self.used += len;
        }
        let handle = FrameHandle(self.next_handle);
        self.next_handle += 1;
        let bytes = Bytes::poisoned(len);
        let frame =
            Frame { len, kind, mappings: 0, fixed: None, unbound_at: 0, bytes, uses: Vec::new() };
        self.frames.insert(handle, frame);
        Some(handle)
    }

    pub(crate) fn frame_len(&self, handle: FrameHandle) -> Option<u64> {
        self.frames.get(&handle).map(|frame| frame.len)
    }

    pub(crate) fn release(&mut self, handle: FrameHandle, now: u64) -> Checked<u64> {
        let frame = self.frames.get(&handle).ok_or("no such frame")?;
        if frame.mappings > 0 {
            return Err("the frame is still mapped");
        }
        if frame.unbound_at > now {
            return Err("an unbind of the frame is not done");
        }
        let (len, kind) = (frame.len, frame.kind);
        self.frames.remove(&handle);
        if kind != FrameKind::Host {
            self.used -= len;
        }
        Ok(len)
    }

    /// Maps one frame. The caller has checked the reservation.
    pub(crate) fn map(&mut self, mapping: &Mapping, aliases: bool) -> Checked<()> {
        let AddrRange { addr, len } = mapping.range;
        let occupied = self.touches(mapping.range);
        let frame = self.frames.get_mut(&mapping.frame).ok_or("no such frame")?;
        if frame.len != len {
            return Err("a frame is mapped whole");
        }
        if occupied {
            return Err("the range is mapped already");
        }
        if !aliases && frame.mappings > 0 {
            return Err("the frame is mapped already, and this device has no aliases");
        }
        frame.mappings += 1;
        let (access, peers, bind) = (false, Vec::new(), None);
        self.mappings.insert(addr.0, Mapped { len, frame: mapping.frame, access, peers, bind });
        Ok(())
    }

    /// Gives a new frame its one address, where it is usable at once.
    pub(crate) fn fix(&mut self, handle: FrameHandle, addr: DeviceAddr) -> Checked<()> {
        let len = self.frame_len(handle).ok_or("no such frame")?;
        self.map(&Mapping { range: AddrRange { addr, len }, frame: handle }, false)?;
        self.grant_access(addr, &[]);
        self.frames.get_mut(&handle).expect("mapped just now").fixed = Some(addr);
        Ok(())
    }

    /// The one address of a frame that lives and has one.
    pub(crate) fn fixed(&self, handle: FrameHandle) -> Option<DeviceAddr> {
        self.frames.get(&handle)?.fixed
    }

    /// Says that the mapping at `addr` exists only once a queued bind is done.
    pub(crate) fn set_bind(&mut self, addr: DeviceAddr, bind: Bind) {
        self.mappings.get_mut(&addr.0).expect("checked to be mapped").bind = Some(bind);
    }

    /// Removes a mapping that begins at `addr`; its unbind is done at `done`.
    pub(crate) fn unmap(&mut self, addr: DeviceAddr, done: u64) {
        let mapped = self.mappings.remove(&addr.0).expect("checked to be mapped");
        let frame = self.frames.get_mut(&mapped.frame).expect("a mapped frame lives");
        frame.mappings -= 1;
        frame.unbound_at = frame.unbound_at.max(done);
    }

    /// Whether anything is mapped in the range.
    pub(crate) fn touches(&self, range: AddrRange) -> bool {
        self.mappings
            .range(..range.end().0)
            .next_back()
            .is_some_and(|(base, mapped)| base + mapped.len > range.addr.0)
    }

    /// Where the mappings begin that make up the range, and their lengths.
    pub(crate) fn whole(&self, range: AddrRange) -> Checked<Vec<(DeviceAddr, u64)>> {
        let mut found = Vec::new();
        let mut next = range.addr.0;
        for (base, mapped) in self.mappings.range(range.addr.0..range.end().0) {
            if *base != next {
                break;
            }
            found.push((DeviceAddr(*base), mapped.len));
            next += mapped.len;
        }
        if next == range.end().0 && !found.is_empty() {
            return Ok(found);
        }
        if next > range.end().0 || self.touches(AddrRange { addr: DeviceAddr(next), len: 1 }) {
            return Err("the range covers a part of a mapping");
        }
        Err("a part of the range is not mapped")
    }

    /// Gives this device and peers access to a mapping. Says to how many peers that is new.
    pub(crate) fn grant_access(&mut self, addr: DeviceAddr, peers: &[DeviceOrdinal]) -> u64 {
        let mapped = self.mappings.get_mut(&addr.0).expect("checked to be mapped");
        mapped.access = true;
        let before = mapped.peers.len();
        for peer in peers {
            if !mapped.peers.contains(peer) {
                mapped.peers.push(*peer);
            }
        }
        (mapped.peers.len() - before) as u64
    }

    /// Whether a peer can use every byte of the range.
    pub(crate) fn peer_has_access(&self, range: AddrRange, peer: DeviceOrdinal) -> bool {
        let mut next = range.addr.0;
        let first = self.mappings.range(..=next).next_back().map_or(next, |(base, _)| *base);
        for (base, mapped) in self.mappings.range(first..range.addr.0.saturating_add(range.len)) {
            if *base <= next && next < base + mapped.len && mapped.peers.contains(&peer) {
                next = base + mapped.len;
            }
        }
        next >= range.addr.0.saturating_add(range.len)
    }

    /// Whether queued work that uses the mapping at `addr` has not ended and does not come before
    /// the point that `before` describes.
    pub(crate) fn is_used(&self, addr: DeviceAddr, now: u64, before: &Before) -> bool {
        let mapped = &self.mappings[&addr.0];
        let seen = addr..addr.offset(mapped.len);
        self.frames[&mapped.frame].uses.iter().any(|used| {
            used.end > now
                && seen.contains(&used.addr)
                && !before.covers(used.stream, used.position)
        })
    }

    /// The parts of frames that work on `stream` sees in the range.
    pub(crate) fn resolve(
        &self,
        range: AddrRange,
        stream: StreamId,
        streams: &Streams,
    ) -> Checked<Vec<Segment>> {
        let end = range.addr.0.checked_add(range.len).ok_or("the range ends beyond 2^64")?;
        let mut segments = Vec::new();
        let mut next = range.addr.0;
        let first = self.mappings.range(..=next).next_back().map_or(next, |(base, _)| *base);
        for (base, mapped) in self.mappings.range(first..end) {
            let mapped_end = base + mapped.len;
            if mapped_end <= next {
                continue;
            }
            if *base > next {
                break;
            }
            if !mapped.access {
                return Err("the range is used without access");
            }
            if let Some(bind) = mapped.bind
                && bind.end > streams.now()
                && !streams.next_is_after(stream, BIND_STREAM, bind.position)
            {
                return Err("the range is used by work that is not ordered after its bind");
            }
            let len = mapped_end.min(end) - next;
            let addr = DeviceAddr(next);
            segments.push(Segment { frame: mapped.frame, offset: next - base, len, addr });
            next += len;
        }
        if next == end { Ok(segments) } else { Err("the range is used and not mapped") }
    }

    /// Notes that work uses the segment. Returns the streams of earlier work that uses the same
    /// bytes, one of both writing, without an order between them.
    pub(crate) fn note_use(
        &mut self,
        segment: &Segment,
        writes: bool,
        stream: StreamId,
        place: &crate::stream::Place,
        streams: &Streams,
    ) -> Vec<StreamId> {
        let now = streams.now();
        let uses = &mut self.frames.get_mut(&segment.frame).expect("a mapped frame lives").uses;
        uses.retain(|used| used.end > now);
        let span = segment.span();
        let unordered = uses
            .iter()
            .filter(|used| {
                (writes || used.writes)
                    && overlap(&used.span, &span)
                    && !streams.next_is_after(stream, used.stream, used.position)
            })
            .map(|used| used.stream)
            .collect();
        if place.end > now {
            let (position, end, addr) = (place.position, place.end, segment.addr);
            uses.push(Use { stream, position, end, addr, span, writes });
        }
        unordered
    }

    pub(crate) fn bytes(&self, frame: FrameHandle) -> &Bytes {
        &self.frames.get(&frame).expect("a used frame lives").bytes
    }

    pub(crate) fn bytes_mut(&mut self, frame: FrameHandle) -> &mut Bytes {
        &mut self.frames.get_mut(&frame).expect("a used frame lives").bytes
    }

    pub(crate) fn list_frames(&self) -> Vec<(FrameHandle, u64)> {
        let mut frames: Vec<_> = self.frames.iter().map(|(id, frame)| (*id, frame.len)).collect();
        frames.sort_unstable();
        frames
    }

    pub(crate) fn list_mappings(&self) -> Vec<Mapping> {
        let mapping = |(base, mapped): (&u64, &Mapped)| Mapping {
            range: AddrRange { addr: DeviceAddr(*base), len: mapped.len },
            frame: mapped.frame,
        };
        self.mappings.iter().map(mapping).collect()
    }
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
